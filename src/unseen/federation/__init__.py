"""The two loops: one client, one server; and what crosses between them."""
