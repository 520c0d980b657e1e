//go:build !unix

package buildtest

// lock keeps nothing: this system has no flock.
func lock(string) (unlock func(), err error) { return nil, errNotKept }
