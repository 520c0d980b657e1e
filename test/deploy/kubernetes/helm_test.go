package kubernetes

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	"helm.sh/helm/v4/pkg/chart/v2/lint"
	"helm.sh/helm/v4/pkg/chart/v2/lint/support"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"sigs.k8s.io/yaml"
)

const chart = "../../../deploy/helm/belfry"

// values decodes values of a chart.
func values(t *testing.T, text string) (v map[string]any) {
	t.Helper()
	if err := yaml.UnmarshalStrict([]byte(text), &v); err != nil {
		t.Fatal(err)
	}
	return v
}

// template renders the chart, as helm template does.
func template(t *testing.T, release, text string) (string, error) {
	t.Helper()
	c, err := loader.Load(chart)
	if err != nil {
		t.Fatal(err)
	}
	v, err := util.ToRenderValues(c, values(t, text), common.ReleaseOptions{Name: release, Namespace: "timers", Revision: 1, IsInstall: true}, common.DefaultCapabilities)
	if err != nil {
		return "", err
	}
	files, err := engine.Render(c, v)
	if err != nil {
		return "", err
	}
	var all strings.Builder
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if strings.HasSuffix(name, ".yaml") && strings.TrimSpace(files[name]) != "" {
			all.WriteString("\n---\n" + strings.Trim(files[name], "\n"))
		}
	}
	return strings.TrimPrefix(all.String(), "\n---\n") + "\n", nil
}

// charts are values with what they make.
var charts = map[string]struct {
	release, values, secret string
	selectors               int
	kinds, words            []string
}{
	"default":  {"belfry", "", "", 3, []string{"ConfigMap", "NetworkPolicy", "Secret", "Service", "StatefulSet"}, []string{"storage: 40Gi", "[]"}},
	"embedded": {"shop", "{config: {retention: 24h}, storage: {size: 1Gi, className: fast}, secret: {name: tokens}, image: {repository: r.example/belfry, tag: 9.8.7}, podAnnotations: {a: b}, resources: {limits: {memory: 2Gi}}, env: [{name: BELFRY_LOG_LEVEL, value: debug}]}", "tokens", 3, []string{"ConfigMap", "NetworkPolicy", "Service", "StatefulSet"}, []string{"name: shop-belfry", "storageClassName: fast", "r.example/belfry:9.8.7", "BELFRY_LOG_LEVEL"}},
	"nats":     {"belfry", "{mode: nats, secret: {natsCreds: x}}", "", 4, []string{"ConfigMap", "Deployment", "NetworkPolicy", "PodDisruptionBudget", "Secret", "Service"}, []string{"replicas: 2", "port: 4222", "nats-url"}},
	"one node": {"b", "{mode: nats, nodes: 1, nats: {url: 'nats://n:4222', creds: false, replicas: 1}, networkPolicy: {enabled: false}, tolerations: [{key: x, operator: Exists}], nodeSelector: {a: b}, imagePullSecrets: [r]}", "", 2, []string{"ConfigMap", "Deployment", "Secret", "Service"}, []string{"nats://n:4222", "- name: r"}},
}

// TestHelm: helm lint finds nothing in the chart, and with each of several values the objects have only fields of
// Kubernetes, are as restricted as those of deploy/kubernetes, and have a config file that the program accepts.
func TestHelm(t *testing.T) {
	t.Parallel()
	program := filepath.Join(t.TempDir(), "belfry")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", program, "./cmd/belfry")
	build.Dir = "../../.."
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	for name, x := range charts {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, m := range lint.RunAll(chart, values(t, x.values), "timers").Messages {
				if m.Severity > support.InfoSev {
					t.Errorf("helm lint: %v", m)
				}
			}
			text, err := template(t, x.release, x.values)
			if err != nil {
				t.Fatal(err)
			}
			all := decode(t, "the chart", []byte(text))
			if n := checkObjects(t, all, x.secret); n != x.selectors {
				t.Errorf("%d objects select pods, want %d", n, x.selectors)
			}
			var kinds []string
			for _, o := range all {
				kind := fmt.Sprintf("%T", o)
				kinds = append(kinds, kind[strings.LastIndex(kind, ".")+1:])
			}
			if slices.Sort(kinds); !slices.Equal(kinds, x.kinds) {
				t.Errorf("got %v, want %v", kinds, x.kinds)
			}
			for _, word := range x.words {
				if !strings.Contains(text, word) {
					t.Errorf("%q is not in\n%s", word, text)
				}
			}
			checkConfig(t, program, all)
		})
	}
}

// checkConfig runs belfry config check with the config file, the Secret and the environment of the objects.
func checkConfig(t *testing.T, program string, all []object) {
	t.Helper()
	dir := t.TempDir()
	files := map[string]string{"tokens.yaml": "[]\n"}
	cmd := exec.CommandContext(t.Context(), program, "config", "check")
	cmd.Env = []string{"HOME=" + dir}
	var pod corev1.PodSpec
	for _, o := range all {
		switch o := o.(type) {
		case *corev1.Secret:
			maps.Copy(files, o.StringData)
		case *corev1.ConfigMap:
			files["belfry.yaml"] = strings.ReplaceAll(o.Data["belfry.yaml"], "/etc/belfry/secret", dir)
		case *appsv1.StatefulSet:
			pod = o.Spec.Template.Spec
		case *appsv1.Deployment:
			pod = o.Spec.Template.Spec
		}
	}
	// The seed of a user that exists nowhere.
	files["nats.creds"] = "-----BEGIN USER NKEY SEED-----\nSUAJNXSIYS5X23VTFIBEDCNNUDMP5DGQ5VE342V32VM4UZ3JD33RZW5T5Y\n------END USER NKEY SEED------\n"
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, e := range pod.Containers[0].Env {
		switch {
		case e.Name == "BELFRY_CONFIG":
			e.Value = filepath.Join(dir, "belfry.yaml")
		case e.ValueFrom != nil: // the name of the pod
			e.Value = "belfry-5f7d8c9b4-x2x7q"
		}
		cmd.Env = append(cmd.Env, e.Name+"="+e.Value)
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("config check: %v\n%s\n%s", err, out, files["belfry.yaml"])
	}
}

// TestHelmPolicies: what the values say about traffic is in the NetworkPolicy.
func TestHelmPolicies(t *testing.T) {
	t.Parallel()
	text, err := template(t, "belfry", `{networkPolicy: {clientLabels: {role: shop}, egress: [{to: [{ipBlock: {cidr: 10.1.0.0/16}}]}]}}`)
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range decode(t, "the chart", []byte(text)) {
		if p, ok := o.(*networkingv1.NetworkPolicy); ok {
			from := p.Spec.Ingress[0].From[0].PodSelector.MatchLabels
			last := p.Spec.Egress[len(p.Spec.Egress)-1].To[0].IPBlock
			// Helm merges maps of values, so a default in values.yaml would remain.
			if len(from) != 1 || from["role"] != "shop" || last == nil || last.CIDR != "10.1.0.0/16" {
				t.Errorf("got clients %v and the last rule of egress %v", from, last)
			}
			return
		}
	}
	t.Error("there is no NetworkPolicy")
}

// TestHelmRefuses: mistakes in values are refused with words that say what is wrong.
func TestHelmRefuses(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"{mode: cluster}":             "mode",
		"{replicas: 3}":               "replicas",
		"{image: {name: x}}":          "name",
		"{mode: nats}":                "secret.natsCreds is empty",
		"{config: {http: '0.0.0.0'}}": "config.http is a setting of the chart",
		"{nodes: 0}":                  "nodes",
	} {
		if _, err := template(t, "belfry", text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got error %v, want %q", text, err, want)
		}
	}
}

// TestHelmSchema: the schema has each value, and the chart each value of the schema.
func TestHelmSchema(t *testing.T) {
	t.Parallel()
	var schema struct {
		Properties map[string]struct{ Properties map[string]any }
	}
	b, err := os.ReadFile(filepath.Join(chart, "values.schema.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, &schema); err != nil {
		t.Fatal(err)
	}
	if b, err = os.ReadFile(filepath.Join(chart, "values.yaml")); err != nil {
		t.Fatal(err)
	}
	got := values(t, string(b))
	for name, p := range schema.Properties {
		inner, _ := got[name].(map[string]any)
		if _, ok := got[name]; !ok && name != "global" { // Helm adds global
			t.Errorf("values.yaml lacks %s", name)
		}
		for key := range p.Properties {
			if _, ok := inner[key]; !ok {
				t.Errorf("values.yaml lacks %s.%s", name, key)
			}
		}
	}
}
