//go:build !linux

package hrtimer

func newClock(expired func()) clock { return newGoClock(expired) }
