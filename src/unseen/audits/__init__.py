"""What can be learnt from what leaves a client: attacks on the real replies of a run, and their scores."""
