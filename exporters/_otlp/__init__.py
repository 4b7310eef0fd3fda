"""The protocol: where requests go, how, and what comes of them."""
