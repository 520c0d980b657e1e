package httpapi

import (
	"net"
	"net/http"
	"net/netip"
	"strings"
)

// On a loopback listener Belfry needs no token, because only programs on this machine can connect. A
// browser on the machine can also connect, on behalf of any web site that it shows. Two checks
// keep such sites out:
//
//   - Browsers say that a request comes from another site (Sec-Fetch-Site, Origin);
//     http.CrossOriginProtection refuses such requests unless they only read. A site cannot see
//     the answer to its own request, because no answer has CORS headers.
//   - A site can point its own name to 127.0.0.1 (DNS rebinding). The browser then treats Belfry as
//     the same site. Its requests have that name in the header Host, so the Host of a caller without
//     a token must be localhost or a loopback address.

// checkOrigin refuses a change that another web site has asked for.
func (a *API) checkOrigin(r *http.Request) error {
	if err := a.origin.Check(r); err != nil {
		return &Error{Status: http.StatusForbidden, Code: codeForbidden, Detail: "a web page of another site has made this request: " + err.Error()}
	}
	return nil
}

// checkHost refuses a caller without a name if the header Host is not localhost or a loopback address.
func (a *API) checkHost(id Identity, r *http.Request) error {
	if !a.o.Loopback || id.Name != "" || LoopbackHost(r.Host) {
		return nil
	}
	return &Error{Status: http.StatusForbidden, Code: codeForbidden, Detail: "without a token the header Host must be localhost or a loopback address, so that no web site can reach Belfry by a name of its own"}
}

// LoopbackHost reports whether a Host header, with or without a port, is localhost or a loopback
// address.
func LoopbackHost(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	if strings.EqualFold(host, "localhost") {
		return true
	}
	addr, err := netip.ParseAddr(host)
	return err == nil && addr.Unmap().IsLoopback()
}
