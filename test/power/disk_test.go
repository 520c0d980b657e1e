package power

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
)

// disk models a folder on a disk: its content as programs see it, and the part that a
// power loss leaves. Nothing is durable without an fsync: bytes and sizes need a
// successful fsync of their file that began after they were written.
//
// A name (of a file that is created, renamed or removed) needs an fsync of its folder.
// With journal, an fsync of the file also suffices, and makes earlier changes in the same
// folders durable. File systems with a metadata journal (ext4, XFS, Btrfs) do that,
// though POSIX does not require it.
type disk struct {
	journal bool
	root    *inode
	names   []*nameChange // not yet durable, in order
	serial  int           // number of the last nameChange
}

// inode is a file or a folder.
type inode struct {
	live, kept map[string]*inode // of a folder; nil for a file

	data   []byte   // durable content of a file
	log    []change // later changes, in order
	synced int      // number of changes that were in log and have become durable
}

// change is a write to a file or, without bytes, a new size.
type change struct {
	at    int64
	bytes []byte
	size  int64
}

// nameChange adds a name to a folder (from is nil), removes one (to is nil), or moves
// one.
type nameChange struct {
	serial         int
	from, to       *inode
	fromName, name string
	ino            *inode
}

func newFolder() *inode { return &inode{live: map[string]*inode{}, kept: map[string]*inode{}} }

// newDisk reads a folder and regards all of it as durable.
func newDisk(dir string, journal bool) (*disk, error) {
	root, err := load(dir)
	return &disk{journal: journal, root: root}, err
}

func load(dir string) (*inode, error) {
	folder := newFolder()
	list, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, e := range list {
		path := filepath.Join(dir, e.Name())
		var i *inode
		switch {
		case e.IsDir():
			if i, err = load(path); err != nil {
				return nil, err
			}
		case e.Type().IsRegular():
			b, err := os.ReadFile(path)
			if err != nil {
				return nil, err
			}
			i = &inode{data: b}
		default:
			return nil, fmt.Errorf("%s is neither a file nor a folder", path)
		}
		folder.live[e.Name()], folder.kept[e.Name()] = i, i
	}
	return folder, nil
}

func (d *disk) changed(c nameChange) {
	d.serial++
	c.serial = d.serial
	if c.from != nil {
		delete(c.from.live, c.fromName)
	}
	if c.to != nil {
		c.to.live[c.name] = c.ino
	}
	d.names = append(d.names, &c)
}

func (d *disk) link(dir *inode, name string, i *inode) {
	d.changed(nameChange{to: dir, name: name, ino: i})
}

func (d *disk) unlink(dir *inode, name string) {
	d.changed(nameChange{from: dir, fromName: name, ino: dir.live[name]})
}

func (d *disk) rename(from *inode, fromName string, to *inode, name string) {
	d.changed(nameChange{from: from, fromName: fromName, to: to, name: name, ino: from.live[fromName]})
}

func (i *inode) write(at int64, b []byte)   { i.log = append(i.log, change{at: at, bytes: b}) }
func (i *inode) truncate(size int64)        { i.log = append(i.log, change{size: size}) }
func (c change) isWrite() bool              { return c.bytes != nil }
func (i *inode) isFolder() bool             { return i.live != nil }
func (c *nameChange) touches(i *inode) bool { return c.from == i || c.to == i }

// apply returns the content after a change.
func (c change) apply(b []byte) []byte {
	end := c.size
	if c.isWrite() {
		end = max(int64(len(b)), c.at+int64(len(c.bytes)))
	}
	if end <= int64(len(b)) {
		b = b[:end]
	} else {
		b = append(b, make([]byte, end-int64(len(b)))...)
	}
	copy(b[min(c.at, end):], c.bytes)
	return b
}

// content returns the content of a file as programs see it.
func (i *inode) content() []byte {
	b := slices.Clone(i.data)
	for _, c := range i.log {
		b = c.apply(b)
	}
	return b
}

// mark is a moment in the history of a file or folder.
type mark struct{ changes, serial int }

// now returns the present moment. An fsync covers what happened before it began.
func (d *disk) now(i *inode) mark { return mark{i.synced + len(i.log), d.serial} }

// sync makes durable what a successful fsync covers that began at m.
func (d *disk) sync(i *inode, m mark) {
	for i.synced < m.changes {
		i.data = i.log[0].apply(i.data)
		i.log = i.log[1:]
		i.synced++
	}
	d.commit(d.covered(i, m))
}

// covered returns the changes of names that an fsync makes durable.
func (d *disk) covered(i *inode, m mark) map[*nameChange]bool {
	out := map[*nameChange]bool{}
	wanted, folders := map[*inode]bool{i: true}, map[*inode]bool{i: i.isFolder()}
	for _, c := range slices.Backward(d.names) {
		if c.serial > m.serial {
			continue
		}
		switch {
		case !d.journal:
			out[c] = i.isFolder() && c.touches(i)
		case wanted[c.ino] || c.from != nil && folders[c.from] || c.to != nil && folders[c.to]:
			// Also earlier changes in its folders, and the creation of these folders.
			out[c] = true
			for _, f := range []*inode{c.from, c.to} {
				if f != nil {
					wanted[f], folders[f] = true, true
				}
			}
		}
	}
	return out
}

func (d *disk) commit(which map[*nameChange]bool) {
	rest := d.names[:0]
	for _, c := range d.names {
		if !which[c] {
			rest = append(rest, c)
			continue
		}
		if c.from != nil && c.from.kept[c.fromName] == c.ino {
			delete(c.from.kept, c.fromName)
		}
		if c.to != nil {
			c.to.kept[c.name] = c.ino
		}
	}
	clear(d.names[len(rest):])
	d.names = rest
}

// loss says what a power loss does to changes that were not synced.
type loss int

const (
	// dropAll loses all of them.
	dropAll loss = iota
	// dropSome loses some of them, like a cache that was written back in part: it keeps
	// names up to a moment, because a journal keeps their order, and any pages of files.
	dropSome
)

func (l loss) String() string {
	if l == dropAll {
		return "all that was not synced lost"
	}
	return "some of what was not synced lost"
}

// lost counts what a power loss has removed.
type lost struct{ names, writes, bytes, files int }

func (l lost) String() string {
	return fmt.Sprintf("%d names, %d writes (%d bytes) of %d files not synced", l.names, l.writes, l.bytes, l.files)
}

// crash writes to dir what a power loss leaves. The model must not be used afterwards.
func (d *disk) crash(dir string, how loss, rng *rand.Rand) (lost, error) {
	var l lost
	l.names = len(d.names)
	if how == dropSome {
		some := map[*nameChange]bool{}
		for _, c := range d.names[:rng.IntN(len(d.names)+1)] {
			some[c] = true
		}
		d.commit(some)
	}
	return l, d.root.leave(dir, how, rng, &l)
}

func (i *inode) leave(dir string, how loss, rng *rand.Rand, l *lost) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(i.kept)) {
		c, path := i.kept[name], filepath.Join(dir, name)
		if c.isFolder() {
			if err := c.leave(path, how, rng, l); err != nil {
				return err
			}
			continue
		}
		if len(c.log) > 0 {
			l.files++
		}
		for _, w := range c.log {
			l.writes++
			l.bytes += len(w.bytes)
		}
		b := slices.Clone(c.data)
		if how == dropSome {
			b = c.some(b, rng)
		}
		if err := os.WriteFile(path, b, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// pageBytes is the unit in which a cache is written back.
const pageBytes = 4096

// some applies a random part of a file's changes.
func (i *inode) some(b []byte, rng *rand.Rand) []byte {
	switch rng.IntN(4) {
	case 0: // none
		return b
	case 1: // all
		return i.content()
	case 2: // up to a moment
		for _, c := range i.log[:rng.IntN(len(i.log)+1)] {
			b = c.apply(b)
		}
		return b
	}
	// The size, and any of the pages. The other pages are unchanged or empty.
	full := i.content()
	out := make([]byte, len(full))
	copy(out, b)
	for at := 0; at < len(full); at += pageBytes {
		if rng.IntN(2) == 0 {
			copy(out[at:min(at+pageBytes, len(full))], full[at:])
		}
	}
	return out
}

// differs compares the folder with the model's view of it. It ignores the files of calls
// that were in progress when the node was killed.
func (d *disk) differs(dir string, doubt map[*inode]bool) ([]string, error) {
	var out []string
	err := d.root.differs(dir, doubt, &out)
	return out, err
}

func (i *inode) differs(dir string, doubt map[*inode]bool, out *[]string) error {
	list, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	seen := map[string]bool{}
	for _, e := range list {
		seen[e.Name()] = true
		path := filepath.Join(dir, e.Name())
		c := i.live[e.Name()]
		switch {
		case doubt[i] && !e.IsDir(), doubt[i] && c == nil:
		case c == nil:
			*out = append(*out, path+" is not in the model")
		case c.isFolder() != e.IsDir():
			*out = append(*out, path+" is of another kind in the model")
		case e.IsDir():
			if err := c.differs(path, doubt, out); err != nil {
				return err
			}
		case !doubt[c]:
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			if m := c.content(); !slices.Equal(b, m) {
				*out = append(*out, fmt.Sprintf("%s has %d bytes, in the model %d, or other ones", path, len(b), len(m)))
			}
		}
	}
	for name := range i.live {
		if !seen[name] && !doubt[i] {
			*out = append(*out, filepath.Join(dir, name)+" is in the model only")
		}
	}
	return nil
}
