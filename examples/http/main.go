// Command http receives callbacks over HTTP and verifies their signatures.
package main

import (
	"cmp"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
)

func main() {
	hook, err := standardwebhooks.NewWebhook(os.Getenv("BELFRY_SECRET"))
	if err != nil {
		log.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:"+cmp.Or(os.Getenv("PORT"), "3000"))
	if err != nil {
		log.Fatal(err)
	}
	s := &shop{orders: map[int]*order{17: {}, 19: {locked: true}}, done: map[string]bool{}}
	mux := http.NewServeMux()
	mux.Handle("POST /expired", receive(hook, s.expire))
	fmt.Println("listening on", l.Addr())
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	log.Fatal(server.Serve(l))
}
