"""Training on upstream verl, unforked: the only part of MIA that knows verl, Ray and Hydra."""
