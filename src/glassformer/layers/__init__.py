"""Parts of networks: a file for each kind of part. No part depends on a model."""
