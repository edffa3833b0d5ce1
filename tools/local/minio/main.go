package main

import (
	"os"

	minio "github.com/minio/minio/cmd"
)

func main() { minio.Main(os.Args) }
