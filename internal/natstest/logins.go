package natstest

import (
	"strings"
	"sync"

	"github.com/nats-io/nats-server/v2/server"
)

// Logins decides who may log in to a server: everybody, except during Refuse.
type Logins struct {
	mu      sync.Mutex
	refuse  *string        // the beginning of the names of refused connections; nil to refuse none
	refused map[string]int // refusals, by the name of the connection
}

// Option makes a server ask l.
func (l *Logins) Option(o *server.Options) { o.CustomClientAuthentication = l }

// Check implements server.Authentication.
func (l *Logins) Check(c server.ClientAuthentication) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	name := c.GetOpts().Name
	if l.refuse == nil || !strings.HasPrefix(name, *l.refuse) {
		return true
	}
	l.refused[name]++
	return false
}

// Refuse refuses connections whose names begin with a text. It forgets earlier refusals.
func (l *Logins) Refuse(names string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.refuse, l.refused = &names, map[string]int{}
}

// Allow refuses nobody any more.
func (l *Logins) Allow() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.refuse = nil
}

// Refused reports whether n connections were refused at least times each.
func (l *Logins) Refused(n, times int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, count := range l.refused {
		if count >= times {
			n--
		}
	}
	return n <= 0
}
