package httpcall

import (
	"fmt"
	"net/netip"
	"syscall"
)

// Guard decides to which addresses a callback may connect. It checks each address when it is
// dialled, after the name was resolved, so a name that later resolves to another address
// cannot evade it. The zero Guard allows only public unicast addresses.
type Guard struct {
	// AllowLoopback allows 127.0.0.0/8 and ::1.
	AllowLoopback bool
	// AllowPrivate allows 10/8, 172.16/12, 192.168/16, 100.64/10 and fc00::/7.
	// Link-local and metadata addresses are still refused.
	AllowPrivate bool
	// AllowPrefixes allows all addresses in these prefixes, except metadata addresses. A
	// metadata address needs a prefix of its own (/32 or /128).
	AllowPrefixes []netip.Prefix
}

// BlockedError is the error for an address that the guard refuses.
type BlockedError struct {
	Addr  netip.Addr
	Class string // the class of the address: "loopback", "private", ...
	Hint  string // the setting that would allow it
}

// Error implements error.
func (e *BlockedError) Error() string {
	return fmt.Sprintf("address %s is refused: it is %s (to allow it: %s)", e.Addr, e.Class, e.Hint)
}

const (
	hintLoopback = "allow-loopback"
	hintPrivate  = "allow-private"
	hintPrefix   = "allow-prefixes with its range"
	hintHost     = "allow-prefixes with exactly this address"
)

type class struct {
	prefix netip.Prefix
	name   string
	kind   kind
}

type kind uint8

const (
	kindOther kind = iota
	kindLoopback
	kindPrivate
	kindMetadata
)

// classes are the special-purpose ranges of the IANA registries. Check searches them in
// order, so a special case comes before the range that contains it.
var classes = []class{
	{netip.MustParsePrefix("169.254.169.254/32"), "a cloud metadata service", kindMetadata},
	{netip.MustParsePrefix("169.254.170.2/32"), "a cloud metadata service", kindMetadata},
	{netip.MustParsePrefix("169.254.170.23/32"), "a cloud metadata service", kindMetadata}, // EKS Pod Identity
	{netip.MustParsePrefix("fd00:ec2::23/128"), "a cloud metadata service", kindMetadata},  // the same
	{netip.MustParsePrefix("100.100.100.200/32"), "a cloud metadata service", kindMetadata},
	{netip.MustParsePrefix("192.0.0.192/32"), "a cloud metadata service", kindMetadata},
	{netip.MustParsePrefix("fd00:ec2::254/128"), "a cloud metadata service", kindMetadata},
	{netip.MustParsePrefix("168.63.129.16/32"), "a cloud metadata service", kindMetadata}, // WireServer of Azure
	{netip.MustParsePrefix("fd20:ce::254/128"), "a cloud metadata service", kindMetadata},
	{netip.MustParsePrefix("fd00:c1::a9fe:a9fe/128"), "a cloud metadata service", kindMetadata}, // Oracle
	{netip.MustParsePrefix("127.0.0.0/8"), "loopback", kindLoopback},
	{netip.MustParsePrefix("::1/128"), "loopback", kindLoopback},
	{netip.MustParsePrefix("10.0.0.0/8"), "private", kindPrivate},
	{netip.MustParsePrefix("172.16.0.0/12"), "private", kindPrivate},
	{netip.MustParsePrefix("192.168.0.0/16"), "private", kindPrivate},
	{netip.MustParsePrefix("100.64.0.0/10"), "shared address space (carrier-grade NAT)", kindPrivate},
	{netip.MustParsePrefix("fc00::/7"), "private", kindPrivate},
	{netip.MustParsePrefix("0.0.0.0/8"), "unspecified", kindOther},
	{netip.MustParsePrefix("169.254.0.0/16"), "link-local", kindOther},
	{netip.MustParsePrefix("192.0.0.0/24"), "reserved", kindOther},
	{netip.MustParsePrefix("192.0.2.0/24"), "reserved for documentation", kindOther},
	{netip.MustParsePrefix("192.88.99.0/24"), "reserved", kindOther},
	{netip.MustParsePrefix("198.18.0.0/15"), "reserved for benchmarks", kindOther},
	{netip.MustParsePrefix("198.51.100.0/24"), "reserved for documentation", kindOther},
	{netip.MustParsePrefix("203.0.113.0/24"), "reserved for documentation", kindOther},
	{netip.MustParsePrefix("224.0.0.0/4"), "multicast", kindOther},
	{netip.MustParsePrefix("240.0.0.0/4"), "reserved or broadcast", kindOther},
	{netip.MustParsePrefix("::/128"), "unspecified", kindOther},
	{netip.MustParsePrefix("fe80::/10"), "link-local", kindOther},
	{netip.MustParsePrefix("fec0::/10"), "site-local", kindOther},
	{netip.MustParsePrefix("ff00::/8"), "multicast", kindOther},
	{netip.MustParsePrefix("2001::/23"), "reserved (Teredo and other protocols)", kindOther},
	{netip.MustParsePrefix("2001:db8::/32"), "reserved for documentation", kindOther},
	{netip.MustParsePrefix("3fff::/20"), "reserved for documentation", kindOther},
}

var (
	nat64      = netip.MustParsePrefix("64:ff9b::/96")
	sixToFour  = netip.MustParsePrefix("2002::/16")
	v4Compat   = netip.MustParsePrefix("::/96")
	globalIPv6 = netip.MustParsePrefix("2000::/3")
)

// Check returns a *BlockedError for an address that must not be connected to.
func (g Guard) Check(addr netip.Addr) error {
	addr = addr.WithZone("").Unmap()
	c := classify(addr)
	if c == nil {
		return nil
	}
	for _, p := range g.AllowPrefixes {
		if p.Contains(addr) && (c.kind != kindMetadata || p.IsSingleIP()) {
			return nil
		}
	}
	hint := hintPrefix
	switch c.kind {
	case kindLoopback:
		if g.AllowLoopback {
			return nil
		}
		hint = hintLoopback
	case kindPrivate:
		if g.AllowPrivate {
			return nil
		}
		hint = hintPrivate
	case kindMetadata:
		hint = hintHost
	}
	return &BlockedError{Addr: addr, Class: c.name, Hint: hint}
}

// classify returns the class of addr, nil for public unicast. An IPv6 address that embeds an
// IPv4 address has the class of the IPv4 address.
func classify(addr netip.Addr) *class {
	if !addr.IsValid() {
		return &class{name: "not an address"}
	}
	for i := range classes {
		if classes[i].prefix.Contains(addr) {
			return &classes[i]
		}
	}
	if addr.Is4() {
		return nil
	}
	b := addr.As16()
	switch {
	case nat64.Contains(addr):
		return classify(netip.AddrFrom4([4]byte(b[12:])))
	case sixToFour.Contains(addr):
		return classify(netip.AddrFrom4([4]byte(b[2:6])))
	case v4Compat.Contains(addr), !globalIPv6.Contains(addr):
		return &class{name: "reserved"}
	}
	return nil
}

// control is net.Dialer.Control: it runs on the socket, before it connects.
func (g Guard) control(_, address string, _ syscall.RawConn) error {
	ap, err := netip.ParseAddrPort(address)
	if err != nil {
		return &BlockedError{Class: "not an address", Hint: hintPrefix}
	}
	return g.Check(ap.Addr())
}
