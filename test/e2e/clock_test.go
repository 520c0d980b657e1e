//go:build unix

package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/testsize"
	"github.com/belfryio/belfry/schemas"
	"github.com/belfryio/belfry/test/proc"
)

// shiftEnv has three numbers of seconds for a program that wrongClock has built: the
// error of its wall clock, the error after a jump, and the time of the jump after the
// start. The monotonic clock stays right, as on a real host.
const shiftEnv = "BELFRY_TEST_WALL_SHIFT"

// shiftFileEnv names a file with the error of the wall clock in seconds. The program reads it
// again every 10 ms, so a test sets the clock of a running program.
const shiftFileEnv = "BELFRY_TEST_WALL_FILE"

// shiftSource is added to package time.
const shiftSource = `package time

import (
	"sync/atomic"
	"syscall"
)

var (
	wallStart                      = runtimeNano()
	wallFirst, wallThen, wallAfter = wallShifts()
	wallFile, _                    = syscall.Getenv("` + shiftFileEnv + `")
	wallNow                        atomic.Int64 // the error in the file
)

func init() {
	if wallFile != "" {
		readWallFile()
		go func() {
			for {
				Sleep(10 * Millisecond)
				readWallFile()
			}
		}()
	}
}

func wallShifts() (first, then, after int64) {
	text, _ := syscall.Getenv("` + shiftEnv + `")
	var n [3]int64
	i, sign := 0, int64(1)
	for _, c := range []byte(text) {
		switch {
		case c == ',' && i < 2:
			i, sign = i+1, 1
		case c == '-':
			sign = -1
		default:
			n[i] = n[i]*10 + sign*int64(c-'0')
		}
	}
	return n[0], n[1], n[2]
}

func wallShift(mono int64) int64 {
	if wallFile != "" {
		return wallNow.Load() // Now also runs where no system call is allowed: on a timer's stack
	}
	if mono-wallStart < wallAfter*1e9 {
		return wallFirst
	}
	return wallThen
}

func readWallFile() {
	fd, err := syscall.Open(wallFile, syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	var b [20]byte
	n, err := syscall.Read(fd, b[:])
	syscall.Close(fd)
	if err != nil || n <= 0 {
		return
	}
	if shift, err := atoi(string(b[:n])); err == nil {
		wallNow.Store(int64(shift))
	}
}
`

var (
	shiftedOnce sync.Mutex
	shifted     string
)

// wrongClock builds belfry with a standard library whose time.Now is shifted. It changes
// one line of a copy of this machine's library.
func wrongClock(t *testing.T) string {
	t.Helper()
	shiftedOnce.Lock()
	defer shiftedOnce.Unlock()
	if shifted != "" {
		return shifted
	}
	out, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		t.Fatal(err)
	}
	pkg := filepath.Join(strings.TrimSpace(string(out)), "src", "time")
	source, err := os.ReadFile(filepath.Join(pkg, "time.go"))
	if err != nil {
		t.Fatal(err)
	}
	const reading = "\tsec, nsec, mono := runtimeNow()\n"
	text := strings.Replace(string(source), "func Now() Time {\n"+reading, "func Now() Time {\n"+reading+"\tsec += wallShift(mono)\n", 1)
	if text == string(source) {
		t.Fatal("time.Now of this Go version is not written as expected: adapt wrongClock to it")
	}
	dir := t.TempDir()
	overlay := map[string]map[string]string{"Replace": {}}
	for name, b := range map[string]string{"time.go": text, "belfry_shift.go": shiftSource} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(b), 0o600); err != nil {
			t.Fatal(err)
		}
		overlay["Replace"][filepath.Join(pkg, name)] = path
	}
	b, err := json.Marshal(overlay)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	shifted = proc.Build(t, "-overlay", path)
	return shifted
}

// TestWrongHostClock runs nodes whose wall clock is wrong by an hour, or becomes wrong,
// against a server whose clock is right. By the server's timestamps nothing is early and
// nothing late.
func TestWrongHostClock(t *testing.T) {
	t.Parallel()
	bin := wrongClock(t)
	const hour, jump = 3600, 4
	for name, shift := range map[string][3]int{
		"ahead":           {hour, hour, 0},
		"behind":          {-hour, -hour, 0},
		"jumps ahead":     {0, hour, jump},
		"jumps back":      {0, -hour, jump},
		"from behind":     {-hour, hour, jump},
		"corrected ahead": {-hour, 0, jump},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if !slices.Contains([]string{"behind", "jumps ahead", "jumps back"}, name) {
				testsize.Long(t, "another wrong clock")
			}
			server := natstest.Run(t)
			off := func(d time.Duration, seconds int) bool {
				return (d - time.Duration(seconds)*time.Second).Abs() > hour*time.Second/2
			}
			// On a slow machine the clock may jump before the node is ready. Then start
			// again, with a later jump.
			var n *proc.Node
			var started time.Time // shortly after the start of the process
			for {
				n = proc.New(t, proc.Options{
					Bin: bin, NATSURL: server.URL(), Config: "shards: 2\nallow-loopback: true\n",
					Env: []string{fmt.Sprintf("%s=%d,%d,%d", shiftEnv, shift[0], shift[1], shift[2])},
				})
				n.Start()
				n.Ready(t.Context())
				started = time.Now()
				d := n.Clock().Sub(started)
				if !off(d, shift[0]) {
					break
				}
				if shift[2] *= 2; off(d, shift[1]) || shift[2] > 10*jump {
					t.Fatalf("the node's clock is off by %s, want %d s", d, shift[0])
				}
				n.Terminate()
			}
			c := connect(t, server.URL())
			http := newCallee(t, nil)
			const count = 600                  // due from before the jump until after it
			earliest := map[string]time.Time{} // when each may fire, by this host's clock, which is the server's
			every := time.Duration(max(shift[2], jump)+2) * time.Second / count
			for k := range count {
				due := started.Add(700*time.Millisecond + time.Duration(k)*every).Truncate(time.Millisecond)
				a := attrs{"id": fmt.Sprint(k), "timersvc": "clock"}
				if k%2 == 0 {
					a["timerat"] = schemas.FormatTime(due.UnixMilli())
				} else { // counted from the stream's timestamp, or from the node's estimate of it
					after := max(time.Until(due), 0).Truncate(time.Millisecond) + time.Millisecond
					a["timerafter"], due = after.String(), time.Now().Add(after)
				}
				if k%20 == 0 {
					a["timercallback"] = http.url
				}
				if m := structured(a, `{}`); k%4 < 2 {
					c.publish(m)
				} else {
					m.Subject = schemas.SubjectAPIPrefix + "add"
					var reply schemas.AddReply
					if err := c.callMsg(m, &reply); err != nil {
						t.Fatal(err)
					}
					due = reply.Due
				}
				earliest[a["id"]] = due
			}
			asked := time.Now()
			c.publish(structured(attrs{"id": "after", "timersvc": "clock", "timerafter": "2s"}, `{}`))
			api := structured(attrs{"id": "api", "timersvc": "clock", "timerafter": "2s"}, `{}`)
			api.Subject = schemas.SubjectAPIPrefix + "add"
			var reply schemas.AddReply
			if err := c.callMsg(api, &reply); err != nil {
				t.Fatal(err)
			}
			events := c.firedEvents("clock", count+2)
			late := lateness(t, events)
			t.Logf("lateness p50 %s, p99 %s, max %s", percentile(late, 50), percentile(late, 99), percentile(late, 100))
			if worst := percentile(late, 100); worst > bound {
				t.Errorf("the latest timer was %s late", worst)
			}
			for _, e := range events {
				if e.id == "after" || e.id == "api" {
					if d := e.at.Sub(asked); d < 2*time.Second || d > bound {
						t.Errorf("%s fired %s after it was added, want 2s", e.id, d)
					}
				}
				if first := earliest[e.id]; e.at.Before(first.Add(-time.Millisecond)) {
					t.Errorf("%s fired at %s, before %s", e.id, e.at, first)
				}
				firedMs, err := schemas.ParseTime(fmt.Sprint(e.extensions[schemas.AttrFired]))
				if err != nil {
					t.Fatal(err)
				}
				if d := e.at.Sub(time.UnixMilli(firedMs)); d < -time.Second || d > bound {
					t.Errorf("%s: timerfired is %s off the server's clock", e.id, d)
				}
			}
			if d := time.Until(n.Clock()); off(d, shift[1]) {
				t.Errorf("at the end the node's clock is off by %s, want %d s", d, shift[1])
			}
			c.until("0", schemas.StateSuccess)
			if len(http.of("0")) != 1 {
				t.Errorf("%d callbacks of timer 0", len(http.of("0")))
			}
			if strings.Contains(n.LogTail(), `"level":"error"`) {
				t.Errorf("the node logged errors:\n%s", n.LogTail())
			}
		})
	}
}
