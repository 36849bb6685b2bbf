"""Hours of use in half an hour: many tenants ask while prefixes come, move and go, clients leave, and processes are killed."""
