package power

import (
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// TestModel compares the model of the disk with what fsync(2) promises.
func TestModel(t *testing.T) {
	t.Parallel()
	write := func(i *inode, at int64, text string) { i.write(at, []byte(text)) }
	create := func(d *disk, dir *inode, name, text string) *inode {
		i := &inode{}
		d.link(dir, name, i)
		write(i, 0, text)
		return i
	}
	// Each case starts with the durable file "old" of six bytes.
	for name, c := range map[string]struct {
		do             func(d *disk)
		journal, posix map[string]string // what a power loss leaves
	}{
		"a write alone": {func(d *disk) {
			write(d.root.live["old"], 6, "more")
			write(d.root.live["old"], 0, "X")
		}, map[string]string{"old": "before"}, nil},
		"a synced write": {func(d *disk) {
			i := d.root.live["old"]
			write(i, 8, "far")
			d.sync(i, d.now(i))
			write(i, 0, "X")
		}, map[string]string{"old": "before\x00\x00far"}, nil},
		"a write that came after the fsync had begun": {func(d *disk) {
			i := d.root.live["old"]
			write(i, 0, "B")
			m := d.now(i)
			write(i, 1, "E")
			d.sync(i, m)
		}, map[string]string{"old": "Before"}, nil},
		"two fsyncs at once": {func(d *disk) {
			i := d.root.live["old"]
			write(i, 0, "B")
			first := d.now(i)
			write(i, 1, "E")
			second := d.now(i)
			d.sync(i, second)
			d.sync(i, first)
			write(i, 2, "F")
		}, map[string]string{"old": "BEfore"}, nil},
		"another file's fsync": {func(d *disk) {
			write(d.root.live["old"], 0, "X")
			i := create(d, d.root, "new", "text")
			d.sync(i, d.now(i))
		}, map[string]string{"old": "before", "new": "text"}, map[string]string{"old": "before"}},
		"a size": {func(d *disk) {
			i := d.root.live["old"]
			i.truncate(3)
			d.sync(i, d.now(i))
			i.truncate(0)
			write(i, 0, "after")
		}, map[string]string{"old": "bef"}, nil},
		"a name without its file": {func(d *disk) {
			create(d, d.root, "new", "text")
			d.sync(d.root, d.now(d.root))
		}, map[string]string{"old": "before", "new": ""}, nil},
		"a file removed": {func(d *disk) { d.unlink(d.root, "old") }, map[string]string{"old": "before"}, nil},
		"a file replaced, its folder not synced": {func(d *disk) {
			i := create(d, d.root, "tmp", "text")
			d.sync(i, d.now(i))
			d.rename(d.root, "tmp", d.root, "old")
		}, map[string]string{"old": "before", "tmp": "text"}, map[string]string{"old": "before"}},
		"a file replaced": {func(d *disk) {
			i := create(d, d.root, "tmp", "text")
			d.sync(i, d.now(i))
			d.rename(d.root, "tmp", d.root, "old")
			d.sync(d.root, d.now(d.root))
		}, map[string]string{"old": "text"}, nil},
		"a file in folders that nobody synced": {func(d *disk) {
			a, b := newFolder(), newFolder()
			d.link(d.root, "a", a)
			d.link(a, "b", b)
			d.link(d.root, "c", newFolder())
			i := create(d, b, "new", "text")
			d.sync(i, d.now(i))
			create(d, b, "late", "text")
		}, map[string]string{"old": "before", "a/b/new": "text"}, map[string]string{"old": "before"}},
		"a folder moved": {func(d *disk) {
			a := newFolder()
			d.link(d.root, "a", a)
			i := create(d, a, "new", "text")
			d.sync(i, d.now(i))
			d.sync(a, d.now(a))
			d.rename(d.root, "a", d.root, "b")
			d.sync(d.root, d.now(d.root))
		}, map[string]string{"old": "before", "b/new": "text"}, nil},
	} {
		for _, journal := range []bool{true, false} {
			want := c.journal
			if !journal && c.posix != nil {
				want = c.posix
			}
			dir := t.TempDir()
			if err := os.WriteFile(filepath.Join(dir, "old"), []byte("before"), 0o600); err != nil {
				t.Fatal(err)
			}
			d, err := newDisk(dir, journal)
			if err != nil {
				t.Fatal(err)
			}
			c.do(d)
			if got := leaves(t, d, dropAll, nil); !maps.Equal(got, want) {
				t.Errorf("%s, journal %v: %q is left, want %q", name, journal, got, want)
			}
		}
	}
}

// leaves returns the files that a power loss leaves, with their content.
func leaves(t *testing.T, d *disk, how loss, rng *rand.Rand) map[string]string {
	t.Helper()
	dir := t.TempDir()
	if _, err := d.crash(dir, how, rng); err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		out[filepath.ToSlash(rel)] = string(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestModelSome shows that synced data survives every random loss, and that each kind of
// loss occurs.
func TestModelSome(t *testing.T) {
	t.Parallel()
	page := func(c byte) []byte { return slices.Repeat([]byte{c}, pageBytes) }
	seen := map[string]bool{}
	for n := range uint64(200) {
		d := &disk{journal: true, root: newFolder()}
		i := &inode{}
		d.link(d.root, "f", i)
		i.write(0, page('a'))
		d.sync(i, d.now(i))
		i.write(pageBytes, page('b'))
		i.write(2*pageBytes, page('c'))
		got := leaves(t, d, dropSome, rand.New(rand.NewPCG(n, 0)))["f"]
		if len(got) < pageBytes || got[:pageBytes] != string(page('a')) {
			t.Fatalf("seed %d: synced data is lost", n)
		}
		shape := ""
		for at := 0; at < len(got); at += pageBytes {
			shape += got[at : at+1]
		}
		seen[shape] = true
	}
	for _, shape := range []string{"a", "ab", "abc", "ab\x00", "a\x00c", "a\x00\x00"} {
		if !seen[shape] {
			t.Errorf("the state %q never occurred", shape)
		}
	}
}
