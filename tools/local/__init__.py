"""S3, SQS, SNS and DynamoDB, MinIO and Azurite on loopback, without Docker: `python -m tools.local`.

`engines` defines the engines and how each starts, `install` installs them, `stack` runs them. They use only the standard
library, so that they run before anything is installed. `serve` runs in the engine's own interpreter.
"""
