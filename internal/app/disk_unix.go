//go:build linux || darwin

package app

import (
	"math"
	"syscall"
)

// freeBytes returns the free space of a folder's file system for this user, in bytes, and
// a very large number if it is unknown.
func freeBytes(dir string) int64 {
	var fs syscall.Statfs_t
	if syscall.Statfs(dir, &fs) != nil {
		return math.MaxInt64
	}
	return clampBytes(fs.Bavail, uint64(fs.Bsize))
}

// totalBytes returns the size of a folder's file system in bytes.
func totalBytes(dir string) int64 {
	var fs syscall.Statfs_t
	if syscall.Statfs(dir, &fs) != nil {
		return math.MaxInt64
	}
	return clampBytes(fs.Blocks, uint64(fs.Bsize))
}

func clampBytes(blocks, size uint64) int64 {
	if size > 0 && blocks > math.MaxInt64/size {
		return math.MaxInt64
	}
	return int64(blocks * size)
}
