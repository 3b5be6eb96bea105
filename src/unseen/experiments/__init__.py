"""Many runs: which to make, carrying them out side by side, what they found together, and what else can be asked of them."""
