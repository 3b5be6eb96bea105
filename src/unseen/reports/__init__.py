"""What runs found, for people: tables, figures and a page. Reads records and nothing else."""
