package app

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/gofrs/flock"

	"github.com/belfryio/belfry/schemas"
)

// Files of the data folder, beside the server's "jetstream".
const (
	lockFile = "belfry.lock"
	pidFile  = "belfry.pid"
	nodeFile = "node"
)

// lockFolder creates the data folder and locks it against other processes. The lock ends with
// the process, even after SIGKILL. The file with the process id is only for error texts.
func lockFolder(dir string) (unlock func(context.Context) error, err error) {
	return lockNamed("data", dir)
}

// lockNamed locks the folder of the setting data or history-folder, like lockFolder.
func lockNamed(setting, dir string) (unlock func(context.Context) error, err error) {
	what := strings.TrimSuffix(setting, "-folder") + " folder"
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, badConfig("%s %s cannot be created: %w", what, dir, err)
	}
	l := flock.New(filepath.Join(dir, lockFile))
	got, err := l.TryLock()
	if err != nil {
		return nil, badConfig("%s %s cannot be locked: %w", what, dir, err)
	}
	if !got {
		return nil, errorOf(ErrInUse, nil, "%s %s is in use by another belfry%s: stop it, or give each its own with --%s", what, dir, lockHolder(dir), setting)
	}
	pid := filepath.Join(dir, pidFile)
	// On a full disk the node waits for room; the process id is only for messages.
	if err := os.WriteFile(pid, []byte(strconv.Itoa(os.Getpid())+"\n"), 0o600); err != nil && !errors.Is(err, syscall.ENOSPC) {
		return nil, errors.Join(badConfig("%s %s cannot be written: %w", what, dir, err), l.Unlock())
	}
	return func(context.Context) error {
		err := os.Remove(pid)
		if errors.Is(err, fs.ErrNotExist) {
			err = nil // another program removed the file; only the lock matters
		}
		return errors.Join(err, l.Unlock())
	}, nil
}

// lockHolder returns a text that names the process with the lock, or "" if it is unknown.
func lockHolder(dir string) string {
	b, err := os.ReadFile(filepath.Join(dir, pidFile))
	if err != nil {
		return "" // the holder has not written it yet
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		return ""
	}
	return fmt.Sprintf(" (process %d)", pid)
}

// folderNode returns the node name that is stored in the folder. The first start generates
// it.
func folderNode(dir string) (string, error) {
	path := filepath.Join(dir, nodeFile)
	b, err := os.ReadFile(path)
	if name := strings.TrimSpace(string(b)); err == nil && name != "" {
		if !schemas.ValidService(name) {
			return "", badConfig("file %s does not contain a node name (letters, digits, '-' or '_')", path)
		}
		return name, nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", badConfig("file %s cannot be read: %w", path, err)
	}
	name := "node-" + randomToken()
	if err := writeSynced(path, []byte(name+"\n")); err != nil {
		return "", badConfig("file %s cannot be written: %w", path, err)
	}
	return name, nil
}

// writeSynced writes a small file atomically and durably: after a power loss the file is
// complete or absent. Without the sync it could have its length but contain zeros.
func writeSynced(path string, b []byte) error {
	tmp := path + ".tmp"
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}

// hostNode returns a node name for a process without a data folder: the host's name, which
// helps readers of logs, and a random part, which makes the name unique.
func hostNode() string {
	host, err := os.Hostname()
	if err != nil {
		host = "host" // the random part is sufficient to make the name unique
	}
	host, _, _ = strings.Cut(host, ".")
	token := strings.Map(func(r rune) rune {
		if schemas.ValidService(string(r)) {
			return r
		}
		return '-'
	}, host)
	return token[:min(len(token), 40)] + "-" + randomToken()
}

func randomToken() string {
	var b [4]byte
	rand.Read(b[:]) // never fails: see crypto/rand
	return hex.EncodeToString(b[:])
}
