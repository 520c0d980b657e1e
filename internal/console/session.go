package console

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"maps"
	"net/http"
	"sync"
	"time"
)

const (
	// cookieName is the cookie with the name of the session.
	cookieName = "belfry_session"
	// sessionTime bounds a session from its login.
	sessionTime = 12 * time.Hour
	// maxSessions bounds the sessions of a node. A login beyond it ends the session that would expire
	// first.
	maxSessions = 1000
)

// session is a login with a token.
type session struct {
	token string
	ends  time.Time
	// ended is closed when the session is removed.
	ended chan struct{}
}

// sessions are the sessions of this node, by the hash of the cookie's value, so the map's keys reveal
// no cookie.
type sessions struct {
	mu  sync.Mutex
	all map[[sha256.Size]byte]session
	// used has the expiry of each login at the provider that has begun a session, by the hash of its
	// state.
	used map[[sha256.Size]byte]time.Time
	now  func() time.Time
}

func newSessions() *sessions {
	return &sessions{all: map[[sha256.Size]byte]session{}, used: map[[sha256.Size]byte]time.Time{}, now: time.Now}
}

// begin begins a session, and returns the value of its cookie and its end: the expiry of its token, but
// at most sessionTime away. The zero time expires is a token that does not expire.
func (s *sessions) begin(token string, expires time.Time) (name string, ends time.Time) {
	name = rand.Text()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expire()
	ends = s.now().Add(sessionTime)
	if !expires.IsZero() && expires.Before(ends) {
		ends = expires
	}
	s.all[sha256.Sum256([]byte(name))] = session{token, ends, make(chan struct{})}
	return name, ends
}

// use reports whether a login at the provider may begin a session. Each login may do so once. At most
// maxSessions logins that have not expired may do so; ends is the expiry of this login.
func (s *sessions) use(state string, ends time.Time) bool {
	key := sha256.Sum256([]byte(state))
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.used, func(_ [sha256.Size]byte, end time.Time) bool { return !s.now().Before(end) })
	if _, ok := s.used[key]; ok || len(s.used) >= maxSessions {
		return false
	}
	s.used[key] = ends
	return true
}

// expire removes the sessions that have ended. If there are still maxSessions, it removes the session
// with the earliest end.
func (s *sessions) expire() {
	var oldest [sha256.Size]byte
	first := time.Time{}
	for key, one := range s.all {
		switch {
		case !s.now().Before(one.ends):
			s.remove(key)
		case first.IsZero() || one.ends.Before(first):
			oldest, first = key, one.ends
		}
	}
	if len(s.all) >= maxSessions {
		s.remove(oldest)
	}
}

// token returns the token of a session; "" if there is no such session.
func (s *sessions) token(name string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	one, ok := s.all[sha256.Sum256([]byte(name))]
	if !ok || !s.now().Before(one.ends) {
		return ""
	}
	return one.token
}

// end ends a session.
func (s *sessions) end(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.remove(sha256.Sum256([]byte(name)))
}

// remove removes a session, if there is one.
func (s *sessions) remove(key [sha256.Size]byte) {
	if one, ok := s.all[key]; ok {
		delete(s.all, key)
		close(one.ended)
	}
}

// within returns a context that ends with a session. Without such a session it has ended.
func (s *sessions) within(ctx context.Context, name string) (context.Context, context.CancelFunc) {
	s.mu.Lock()
	one := s.all[sha256.Sum256([]byte(name))]
	left := one.ends.Sub(s.now())
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, left)
	if one.ended != nil {
		go func() {
			select {
			case <-one.ended:
				cancel()
			case <-ctx.Done():
			}
		}()
	}
	return ctx, cancel
}

// cookie returns the cookie of a session until its end; an empty name removes it from the browser.
func cookie(name string, ends time.Time, r *http.Request) *http.Cookie {
	seconds := max(int(time.Until(ends)/time.Second), 1)
	c := &http.Cookie{Name: cookieName, Value: name, Path: "/", HttpOnly: true, SameSite: http.SameSiteStrictMode, Secure: r.TLS != nil, MaxAge: seconds}
	if name == "" {
		c.MaxAge = -1
	}
	return c
}

// sessionName returns the name in the cookie of a request; "" for none.
func sessionName(r *http.Request) string {
	c, err := r.Cookie(cookieName)
	if err != nil {
		return ""
	}
	return c.Value
}
