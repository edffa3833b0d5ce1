terraform {
  required_version = ">= 1.5" # or OpenTofu

  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = ">= 5.40"
    }
  }
}
