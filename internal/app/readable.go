package app

import (
	"io/fs"
	"os"
	"runtime"
)

// anybody are the permission bits of users who are neither the owner nor in the group
// of a file.
const anybody fs.FileMode = 0o007

// warnReadable warns about secrets, and about a data folder, that every user of the
// host can read. It changes nothing: the permissions may be meant, and only their
// owner can tell.
func (a *App) warnReadable() {
	if runtime.GOOS == "windows" {
		return // permission bits mean nothing there
	}
	if a.o.embedded() {
		if mode, ok := openToAnybody(a.o.Data); ok {
			a.o.Log.Warn().Str("folder", a.o.Data).Stringer("mode", mode).Str("do", "chmod 700 "+a.o.Data).
				Msg("every user of this host can open the data folder, which holds all timers: take the permission away")
		}
	}
	seen := map[string]bool{}
	for _, path := range a.o.secretFiles() {
		mode, ok := openToAnybody(path)
		if !ok || seen[path] {
			continue
		}
		seen[path] = true
		a.o.Log.Warn().Str("file", path).Stringer("mode", mode).Str("do", "chmod 600 "+path).
			Msg("every user of this host can read a file that holds secrets: take the permission away")
	}
}

// secretFiles are all files with secrets that the options name.
func (o *Options) secretFiles() []string {
	var out []string
	for _, path := range append([]string{o.Creds, o.TLS.Key, o.NATSTLS.Key, o.HTTPTLS.Key}, o.SecretFiles...) {
		if path != "" {
			out = append(out, path)
		}
	}
	return out
}

// openToAnybody reports whether the path exists and other users may open it.
func openToAnybody(path string) (fs.FileMode, bool) {
	info, err := os.Stat(path)
	if err != nil {
		return 0, false // whoever reads the file reports the error
	}
	mode := info.Mode().Perm()
	return mode, mode&anybody != 0
}
