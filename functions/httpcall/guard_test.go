package httpcall

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"slices"
	"testing"
)

func TestGuardRefuses(t *testing.T) {
	t.Parallel()
	for _, a := range []string{
		"127.0.0.1", "127.255.255.254", "::1", "::ffff:127.0.0.1", "::ffff:7f00:1", "64:ff9b::7f00:1", "2002:7f00:1::1", "::127.0.0.1",
		"0.0.0.0", "0.1.2.3", "::", "::ffff:0.0.0.0",
		"10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1", "100.64.0.1", "100.127.255.255", "fc00::1", "fdff::1",
		"::ffff:10.0.0.1", "64:ff9b::a00:1", "2002:a00:1::", "2002:c0a8:101::",
		"169.254.169.254", "169.254.1.1", "169.254.170.2", "100.100.100.200", "fd00:ec2::254", "fd20:ce::254", "::ffff:169.254.169.254",
		"168.63.129.16", "::ffff:168.63.129.16", "64:ff9b::a83f:8110", "2002:a83f:8110::", "fd00:c1::a9fe:a9fe",
		"64:ff9b::a9fe:a9fe", "2002:a9fe:a9fe::", "192.0.0.192",
		"fe80::1", "fe80::1%eth0", "fec0::1", "224.0.0.1", "239.255.255.255", "255.255.255.255", "240.0.0.1", "ff02::1",
		"192.0.2.1", "198.18.0.1", "198.51.100.1", "203.0.113.1", "192.88.99.1",
		"2001::1", "2001:db8::1", "3fff::1", "64:ff9b:1::1", "100::1", "5f00::1", "4000::1", "::2", "::ffff:0:127.0.0.1",
	} {
		var blocked *BlockedError
		if err := (Guard{}).Check(netip.MustParseAddr(a)); !errors.As(err, &blocked) || blocked.Class == "" || blocked.Hint == "" {
			t.Errorf("%s: %v", a, err)
		}
	}
	if (Guard{AllowLoopback: true, AllowPrivate: true}).Check(netip.Addr{}) == nil {
		t.Error("the guard permits an empty address")
	}
}

func TestGuardAllows(t *testing.T) {
	t.Parallel()
	prefixes := func(p ...string) (out []netip.Prefix) {
		for _, s := range p {
			out = append(out, netip.MustParsePrefix(s))
		}
		return out
	}
	for _, c := range []struct {
		g    Guard
		addr string
		want bool
	}{
		{Guard{}, "1.1.1.1", true}, {Guard{}, "172.32.0.1", true}, {Guard{}, "100.128.0.1", true}, {Guard{}, "2606:4700::1111", true},
		{Guard{}, "::ffff:1.1.1.1", true}, {Guard{}, "64:ff9b::101:101", true}, {Guard{}, "2002:101:101::1", true},
		{Guard{AllowLoopback: true}, "127.0.0.1", true}, {Guard{AllowLoopback: true}, "::1", true}, {Guard{AllowLoopback: true}, "::ffff:127.0.0.1", true},
		{Guard{AllowLoopback: true}, "10.0.0.1", false}, {Guard{AllowLoopback: true}, "0.0.0.0", false},
		{Guard{AllowPrivate: true}, "10.0.0.1", true}, {Guard{AllowPrivate: true}, "fd12::1", true}, {Guard{AllowPrivate: true}, "100.64.0.1", true},
		{Guard{AllowPrivate: true}, "127.0.0.1", false}, {Guard{AllowPrivate: true}, "169.254.169.254", false}, {Guard{AllowPrivate: true}, "fd00:ec2::254", false}, {Guard{AllowPrivate: true}, "fd00:ec2::23", false},
		{Guard{AllowPrivate: true}, "fd00:c1::a9fe:a9fe", false}, {Guard{AllowPrivate: true}, "fd00:c1::a9fe:a9ff", true},
		{Guard{AllowPrivate: true}, "168.63.129.16", false}, {Guard{}, "168.63.129.17", true}, {Guard{AllowPrefixes: prefixes("168.63.0.0/16")}, "168.63.129.16", false},
		{Guard{AllowPrefixes: prefixes("fd00:c1::a9fe:a9fe/128", "168.63.129.16/32")}, "168.63.129.16", true},
		{Guard{AllowPrivate: true}, "100.100.100.200", false}, {Guard{AllowPrivate: true}, "fe80::1", false},
		{Guard{AllowPrefixes: prefixes("10.1.0.0/16")}, "10.1.2.3", true}, {Guard{AllowPrefixes: prefixes("10.1.0.0/16")}, "10.2.2.3", false},
		{Guard{AllowPrefixes: prefixes("0.0.0.0/0")}, "169.254.169.254", false}, {Guard{AllowPrefixes: prefixes("0.0.0.0/0")}, "169.254.1.1", true},
		{Guard{AllowPrefixes: prefixes("169.254.169.254/32")}, "169.254.169.254", true},
	} {
		if err := c.g.Check(netip.MustParseAddr(c.addr)); (err == nil) != c.want {
			t.Errorf("%+v %s: %v", c.g, c.addr, err)
		}
	}
}

func FuzzGuardEmbeddedAddresses(f *testing.F) {
	f.Add([]byte{127, 0, 0, 1})
	f.Add([]byte{169, 254, 169, 254})
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) != 4 {
			return
		}
		v4 := netip.AddrFrom4([4]byte(b))
		plain := Guard{}.Check(v4) == nil
		var mapped, nat, six [16]byte
		mapped[10], mapped[11] = 0xff, 0xff
		binary.BigEndian.PutUint32(nat[:], 0x0064ff9b)
		binary.BigEndian.PutUint16(six[:], 0x2002)
		copy(mapped[12:], b)
		copy(nat[12:], b)
		copy(six[2:], b)
		for _, x := range [][16]byte{mapped, nat, six} {
			if got := (Guard{}).Check(netip.AddrFrom16(x)) == nil; got != plain {
				t.Errorf("%v is allowed: %v, as %v: %v", v4, plain, netip.AddrFrom16(x), got)
			}
		}
	})
}

// resolver answers each query for an A record with the next address, and repeats the last
// one.
func resolver(t *testing.T, addrs ...string) *net.Resolver {
	t.Helper()
	pc, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	t.Cleanup(func() { _ = pc.Close(); <-done })
	go func() {
		defer close(done)
		buf := make([]byte, 1500)
		for {
			n, from, err := pc.ReadFrom(buf)
			if err != nil {
				return
			}
			// The header, then the question up to its zero label, type and class.
			end := 12 + slices.Index(buf[12:n], 0) + 5
			kind := binary.BigEndian.Uint16(buf[end-4:])
			reply := append([]byte(nil), buf[:end]...)
			copy(reply[2:12], []byte{0x84, 0x80, 0, 1, 0, 0, 0, 0, 0, 0})
			if kind == 1 {
				reply[7] = 1
				reply = append(reply, 0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4)
				a4 := netip.MustParseAddr(addrs[0]).As4()
				reply = append(reply, a4[:]...)
				if len(addrs) > 1 {
					addrs = addrs[1:]
				}
			}
			if _, err := pc.WriteTo(reply, from); err != nil {
				return
			}
		}
	}()
	return &net.Resolver{PreferGo: true, Dial: dialer(pc.LocalAddr().String())}
}
