"""From verified outcomes to the ledger, the plots and the words of a report. Knows no engine and no cluster."""
