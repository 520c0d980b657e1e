package natstest

import (
	"bufio"
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/belfryio/belfry/internal/tcptest"
)

// Greeting serves the greeting of a NATS server of another version, answers pings, and
// ignores everything else. It returns the server's URL.
func Greeting(tb testing.TB, version string) (url string) {
	tb.Helper()
	return "nats://" + tcptest.Serve(tb, func(c net.Conn) {
		fmt.Fprintf(c, "INFO {\"server_id\":\"OTHER\",\"version\":%q,\"proto\":1,\"headers\":true,\"jetstream\":true,\"max_payload\":1048576}\r\n", version)
		for s := bufio.NewScanner(c); s.Scan(); {
			if strings.HasPrefix(s.Text(), "PING") {
				fmt.Fprint(c, "PONG\r\n")
			}
		}
	})
}
