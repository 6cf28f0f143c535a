"""What the audit holds against an application: ranges of batches, expectations, contracts. Declarations; Spark runs them."""
