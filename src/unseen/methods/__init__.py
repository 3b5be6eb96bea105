"""One file per method. A file here is registered by being here; no method imports another."""
