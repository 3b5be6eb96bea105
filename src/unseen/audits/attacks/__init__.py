"""One small file per attack. Each says what it needs and whom it plays; none knows a method by name."""
