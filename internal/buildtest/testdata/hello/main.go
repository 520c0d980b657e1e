// Command hello is a program for the tests of package buildtest.
package main

import "fmt"

var name = "nobody"

func main() { fmt.Print("hello ", name) }
