package app

import (
	"io/fs"
	"os"
	"runtime"
)

// anybody is the mask of the permission bits for users who are neither the owner nor in the
// group of a file.
const anybody fs.FileMode = 0o007

// warnReadable logs a warning for files with secrets, and for a data folder, that every user
// of the host can read. It does not change permissions, because they may be intentional.
func (a *App) warnReadable() {
	if runtime.GOOS == "windows" {
		return // this system has no permission bits
	}
	if a.o.embedded() {
		mode, ok := openToAnybody(a.o.Data)
		if info, err := os.Stat(a.o.Data); ok && err == nil && info.IsDir() { // otherwise the lock of the folder fails
			a.o.Log.Warn().Str("folder", a.o.Data).Stringer("mode", mode).Str("do", "chmod 700 "+a.o.Data).
				Msg("every user of this host can open the data folder, which has all timers: remove the permission")
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
			Msg("every user of this host can read a file with secrets: remove the permission")
	}
}

// secretFiles returns all files with secrets in the options.
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
		return 0, false // the reader of the file reports the error
	}
	mode := info.Mode().Perm()
	return mode, mode&anybody != 0
}
