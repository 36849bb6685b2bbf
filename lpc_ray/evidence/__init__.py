"""From a run's store to the records that the analysis shows: nothing here runs a model."""
