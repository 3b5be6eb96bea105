"""One file per method. A file here is registered by being here; no method imports another."""

OWN_FILES = "UNSEEN_METHODS"  # the variable with the files of `unseen --with`, which all processes of a run inherit
