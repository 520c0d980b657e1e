package deploy

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/nats-io/nkeys"
	"go.yaml.in/yaml/v3"

	"github.com/belfryio/belfry/test/proc"
)

// composeService has the keys of a service that compose.yaml uses.
type composeService struct {
	Image, Restart  string
	Profiles        []string
	Command         []string
	ReadOnly        bool     `yaml:"read_only"`
	CapDrop         []string `yaml:"cap_drop"`
	SecurityOpt     []string `yaml:"security_opt"`
	StopGracePeriod string   `yaml:"stop_grace_period"`
	StopSignal      string   `yaml:"stop_signal"`
	DependsOn       []string `yaml:"depends_on"`
	Ulimits         map[string]int
	Networks        []string
	Environment     map[string]string
	Ports           []string
	Volumes         []string
}

// TestCompose: the program accepts the environment of each node, nothing is published beyond loopback, and
// the volumes, networks and services that others name exist.
func TestCompose(t *testing.T) {
	t.Parallel()
	var file struct {
		Name     string
		Services map[string]composeService
		Networks map[string]struct {
			IPAM struct {
				Config []struct{ Subnet string }
			}
		}
		Volumes    map[string]any
		Extensions map[string]any `yaml:",inline"`
	}
	readYAML(t, "deploy/compose/compose.yaml", &file)
	for key := range file.Extensions {
		if !strings.HasPrefix(key, "x-") {
			t.Errorf("compose.yaml has the unknown key %s", key)
		}
	}
	profiles := map[string]int{}
	for name, s := range file.Services {
		if len(s.Profiles) != 1 {
			t.Errorf("service %s has the profiles %v, want one", name, s.Profiles)
			continue
		}
		profiles[s.Profiles[0]]++
		for _, p := range s.Ports {
			if !strings.HasPrefix(p, "127.0.0.1:") {
				t.Errorf("service %s publishes %s beyond loopback", name, p)
			}
		}
		for _, other := range s.DependsOn {
			if _, ok := file.Services[other]; !ok {
				t.Errorf("service %s depends on %s, which does not exist", name, other)
			}
		}
		for _, v := range s.Volumes {
			source, _, _ := strings.Cut(v, ":")
			if _, ok := file.Volumes[source]; !ok && !strings.HasPrefix(source, "../cluster/nats.conf") {
				t.Errorf("service %s has the volume %s, which does not exist", name, source)
			}
		}
		if !strings.HasPrefix(name, "belfry") {
			continue
		}
		if !s.ReadOnly || !slices.Equal(s.CapDrop, []string{"ALL"}) {
			t.Errorf("service %s may write to its root file system, or has capabilities", name)
		}
		if got, want := s.Environment["BELFRY_ALLOW_PREFIXES"], file.Networks["belfry"].IPAM.Config[0].Subnet; got != want {
			t.Errorf("service %s allows callbacks to %s, and the network is %s", name, got, want)
		}
		env := []string{"BELFRY_DATA=/var/lib/belfry"} // of the image
		for key, value := range s.Environment {
			env = append(env, key+"="+expand(value))
		}
		checkConfig(t, name, env)
	}
	if profiles["single"] != 1 || profiles["cluster"] != 5 {
		t.Errorf("the profiles have %v services, want 1 in single and 5 in cluster", profiles)
	}
	// test/conf runs a cluster with the file that the NATS servers mount.
	variables := regexp.MustCompile(`: *\$([A-Z_]+)`).FindAllStringSubmatch(read(t, "deploy/cluster/nats.conf"), -1)
	if len(variables) < 8 {
		t.Fatalf("nats.conf has only the variables %v", variables)
	}
	for name, s := range file.Services {
		for _, v := range variables {
			if strings.HasPrefix(name, "nats") && s.Environment[v[1]] == "" {
				t.Errorf("service %s lacks the variable %s of nats.conf", name, v[1])
			}
		}
	}
}

// expand replaces ${NAME:-default} by the default, and ${NAME:?message} by a value.
func expand(value string) string {
	return os.Expand(value, func(name string) string {
		if _, fallback, found := strings.Cut(name, ":-"); found {
			return fallback
		}
		return "0123456789abcdef0123456789abcdef"
	})
}

// checkConfig runs belfry config check with an environment.
func checkConfig(t *testing.T, where string, env []string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), proc.Build(t), "config", "check")
	cmd.Env = append([]string{"HOME=" + t.TempDir()}, env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%s: config check: %v\n%s", where, err, out)
	}
}

// credentials returns a credentials file with the seed of a new user.
func credentials(t *testing.T) string {
	t.Helper()
	user, err := nkeys.CreateUser()
	if err != nil {
		t.Fatal(err)
	}
	seed, err := user.Seed()
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("-----BEGIN USER NKEY SEED-----\n%s\n------END USER NKEY SEED------\n", seed)
}

// TestKubernetes: the files are YAML without duplicate keys, the program accepts the config files and the
// environment in them, and the tokens of the example. The module in the folder kubernetes compares the
// files with the types of Kubernetes. No cluster has run them.
func TestKubernetes(t *testing.T) {
	t.Parallel()
	var secret struct {
		StringData map[string]string `yaml:"stringData"`
	}
	if err := yaml.Unmarshal([]byte(read(t, "deploy/kubernetes/secret.example.yaml")), &secret); err != nil {
		t.Fatal(err)
	}
	secret.StringData["nats.creds"] = credentials(t) // in place of the placeholder
	for _, file := range []string{"single.yaml", "nats.yaml"} {
		t.Run(file, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			for name, text := range secret.StringData {
				if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			config := filepath.Join(dir, "belfry.yaml")
			env := []string{"BELFRY_CONFIG=" + config}
			found := 0
			d := yaml.NewDecoder(strings.NewReader(read(t, "deploy/kubernetes/"+file)))
			for {
				var o struct {
					Kind string
					Data map[string]string
					Spec struct {
						Template struct {
							Spec struct {
								Containers []struct {
									Args []string
									Env  []struct{ Name, Value string }
								}
							}
						}
					}
				}
				if err := d.Decode(&o); errors.Is(err, io.EOF) {
					break
				} else if err != nil {
					t.Fatal(err)
				}
				if o.Kind == "ConfigMap" {
					found++
					if err := os.WriteFile(config, []byte(strings.ReplaceAll(o.Data["belfry.yaml"], "/etc/belfry/secret", dir)), 0o600); err != nil {
						t.Fatal(err)
					}
				}
				for _, c := range o.Spec.Template.Spec.Containers {
					found++
					if !slices.Equal(c.Args, []string{"serve"}) {
						t.Errorf("the container has the arguments %v", c.Args)
					}
					for _, e := range c.Env {
						switch e.Name {
						case "BELFRY_CONFIG":
						case "BELFRY_NODE": // the name of the pod
							env = append(env, e.Name+"=belfry-5f7d8c9b4-x2x7q")
						default:
							env = append(env, fmt.Sprintf("%s=%s", e.Name, e.Value))
						}
					}
				}
			}
			if found != 2 {
				t.Fatalf("the file has %d ConfigMaps and containers, want 2", found)
			}
			checkConfig(t, file, env)
		})
	}
}
