"""What logs of the communication library tell of the network, and what measurements confirm."""
