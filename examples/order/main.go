// Command order is a service that expires orders which were not paid.
package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"sync"
)

// shop has the runs that were done, by their keys. A real service has a table of them, and
// writes the key in the transaction that expires the order.
type shop struct {
	mu    sync.Mutex
	calls int
	done  map[string]bool
}

func main() {
	l, err := net.Listen("tcp", "127.0.0.1:"+cmp.Or(os.Getenv("PORT"), "3000"))
	if err != nil {
		log.Fatal(err)
	}
	s := &shop{done: map[string]bool{}}
	http.HandleFunc("POST /expired", s.expired)
	fmt.Println("listening on", l.Addr())
	log.Fatal(http.Serve(l, nil))
}

func (s *shop) expired(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var order struct{ Order int }
	if err := json.NewDecoder(r.Body).Decode(&order); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if s.calls++; s.calls == 1 {
		http.Error(w, "the database does not answer", http.StatusInternalServerError)
		return
	}
	key := r.Header.Get("Idempotency-Key") // the same for each attempt
	if !s.done[key] {
		s.done[key] = true
		fmt.Println("order", order.Order, "expired")
	}
	_, _ = fmt.Fprintf(w, `{"expired":%d}`, order.Order)
}
