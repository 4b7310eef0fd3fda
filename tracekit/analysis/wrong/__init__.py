"""What is set up or computed wrongly while the training goes on."""
