"""Settings: environment variables, YAML files, routes and S3 prefixes. The only code that reads the environment."""
