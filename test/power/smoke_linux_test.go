//go:build amd64 || arm64

package power

import (
	"github.com/belfryio/belfry/test/proc"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestMain(m *testing.M) {
	if os.Getenv(becomeEnv) != "" {
		become()
	}
	os.Exit(proc.Run(m))
}
func TestSmoke(t *testing.T) {
	dir := t.TempDir()
	data := filepath.Join(dir, "data")
	os.Mkdir(data, 0o700)
	d, err := newDisk(data, true)
	if err != nil {
		t.Fatal(err)
	}
	log, _ := os.Create(filepath.Join(dir, "log"))
	na, ha := proc.FreeAddress(t), proc.FreeAddress(t)
	bin := proc.Build(t)
	begin := time.Now()
	tr, err := trace(d, data, []string{bin, "serve", "--data", data, "--nats-listen", na, "--http", ha}, []string{"HOME=" + dir}, log)
	if err != nil {
		t.Fatal(err)
	}
	for time.Since(begin) < 20*time.Second {
		r, err := http.Get("http://" + ha + "/readyz")
		if err == nil {
			r.Body.Close()
			if r.StatusCode == 200 {
				break
			}
		}
		time.Sleep(20 * time.Millisecond)
	}
	t.Log("ready", time.Since(begin), tr.seen.Load())
	time.Sleep(2 * time.Second)
	t.Log("seen", tr.seen.Load())
	tr.arm(3)
	<-tr.done
	b, _ := os.ReadFile(log.Name())
	t.Log(string(b))
	t.Log(tr.problems, tr.fsyncs, len(d.names))
	diff, err := d.differs(data, tr.doubt())
	t.Log(diff, err)
	for _, c := range d.names {
		t.Log(c.fromName, c.name)
	}
}
