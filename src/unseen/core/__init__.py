"""What everything stands on: what travels, tensors, dice, errors, files, the machine."""
