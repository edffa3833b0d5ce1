"""S3, SQS and DynamoDB on loopback, without Docker: `python -m tools.local`.

`engines` knows the two engines and how each is started, `install` gets them, `stack` runs them. Only the standard
library is used, so that it runs before anything is installed. `serve` runs inside the engine's own interpreter.
"""
