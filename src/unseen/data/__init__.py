"""Images by domain: indexed, decoded once, dealt out to clients, augmented in batches."""
