package kubernetes

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

const folder = "../../../deploy/kubernetes"

// object is what all objects of Kubernetes have.
type object interface{ GetName() string }

// objects decodes a file.
func objects(t *testing.T, file string) []object {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(folder, file))
	if err != nil {
		t.Fatal(err)
	}
	return decode(t, file, b)
}

// decode decodes the documents of a file. It refuses fields that Kubernetes does not have.
func decode(t *testing.T, file string, text []byte) []object {
	t.Helper()
	var all []object
	for i, doc := range bytes.Split(text, []byte("\n---\n")) {
		var kind metav1.TypeMeta
		if err := yaml.Unmarshal(doc, &kind); err != nil {
			t.Fatalf("%s: document %d: %v", file, i, err)
		}
		into, ok := map[string]object{
			"v1 ConfigMap": &corev1.ConfigMap{}, "v1 Secret": &corev1.Secret{}, "v1 Service": &corev1.Service{},
			"apps/v1 StatefulSet": &appsv1.StatefulSet{}, "apps/v1 Deployment": &appsv1.Deployment{},
			"networking.k8s.io/v1 NetworkPolicy": &networkingv1.NetworkPolicy{}, "policy/v1 PodDisruptionBudget": &policyv1.PodDisruptionBudget{},
		}[kind.APIVersion+" "+kind.Kind]
		if !ok {
			t.Fatalf("%s: document %d is a %s %s", file, i, kind.APIVersion, kind.Kind)
		}
		text, err := yaml.YAMLToJSONStrict(doc)
		if err != nil {
			t.Fatalf("%s: %s: %v", file, kind.Kind, err)
		}
		// Like the API server, and unlike encoding/json, it distinguishes letter case.
		problems, err := json.UnmarshalStrict(text, into)
		if err = errors.Join(append(problems, err)...); err != nil {
			t.Fatalf("%s: %s: %v", file, kind.Kind, err)
		}
		for _, problem := range validation.IsDNS1123Subdomain(into.GetName()) {
			t.Errorf("%s: the name of the %s: %s", file, kind.Kind, problem)
		}
		all = append(all, into)
	}
	return all
}

// TestFiles: the files have only fields of Kubernetes, their selectors select the pods, and the pods are
// restricted and use the ConfigMap, the Secret and the volumes that exist.
func TestFiles(t *testing.T) {
	t.Parallel()
	secret := objects(t, "secret.example.yaml")[0].(*corev1.Secret)
	for _, file := range []string{"single.yaml", "nats.yaml"} {
		t.Run(file, func(t *testing.T) {
			t.Parallel()
			if n := checkObjects(t, objects(t, file), secret.Name); n < 3 {
				t.Errorf("only %d objects select pods", n)
			}
		})
	}
}

// checkObjects checks the objects of a node, whose Secret exists if it has a name. It returns how many of them
// select the pods.
func checkObjects(t *testing.T, all []object, secret string) int {
	t.Helper()
	names := map[string]bool{"Secret " + secret: secret != ""}
	var pod corev1.PodTemplateSpec
	claims := map[string]bool{}
	selectors := map[string]*metav1.LabelSelector{}
	for _, o := range all {
		switch o := o.(type) {
		case *corev1.ConfigMap:
			names["ConfigMap "+o.Name] = true
		case *corev1.Secret:
			names["Secret "+o.Name] = true
		case *corev1.Service:
			selectors["Service"] = &metav1.LabelSelector{MatchLabels: o.Spec.Selector}
		case *appsv1.StatefulSet:
			pod, selectors["StatefulSet"] = o.Spec.Template, o.Spec.Selector
			if n := value(o.Spec.Replicas); n != 1 {
				t.Errorf("%d nodes have an embedded server each, and share nothing", n)
			}
			for _, c := range o.Spec.VolumeClaimTemplates {
				claims[c.Name] = true
			}
		case *appsv1.Deployment:
			pod, selectors["Deployment"] = o.Spec.Template, o.Spec.Selector
		case *networkingv1.NetworkPolicy:
			selectors["NetworkPolicy"] = &o.Spec.PodSelector
		case *policyv1.PodDisruptionBudget:
			selectors["PodDisruptionBudget"] = o.Spec.Selector
		}
	}
	for kind, s := range selectors {
		if sel, err := metav1.LabelSelectorAsSelector(s); err != nil || sel.Empty() || !sel.Matches(labels.Set(pod.Labels)) {
			t.Errorf("the %s does not select the pods (%v)", kind, err)
		}
	}
	checkPod(t, pod.Spec, names, claims)
	return len(selectors)
}

func checkPod(t *testing.T, pod corev1.PodSpec, names, volumes map[string]bool) {
	t.Helper()
	if s := pod.SecurityContext; s == nil || !value(s.RunAsNonRoot) || value(s.RunAsUser) == 0 || value(s.SeccompProfile).Type != corev1.SeccompProfileTypeRuntimeDefault ||
		pod.AutomountServiceAccountToken == nil || *pod.AutomountServiceAccountToken {
		t.Errorf("the pod is not restricted: %+v", s)
	}
	if grace := value(pod.TerminationGracePeriodSeconds); grace <= 10 {
		t.Errorf("the pod is killed after %d s, and a node needs up to 10 s to stop", grace)
	}
	for _, v := range pod.Volumes {
		volumes[v.Name] = true
		if c := v.ConfigMap; c != nil && !names["ConfigMap "+c.Name] {
			t.Errorf("ConfigMap %s does not exist", c.Name)
		}
		if s := v.Secret; s != nil && !names["Secret "+s.SecretName] {
			t.Errorf("Secret %s does not exist", s.SecretName)
		}
	}
	c := pod.Containers[0]
	if s := value(c.SecurityContext); s.AllowPrivilegeEscalation == nil || *s.AllowPrivilegeEscalation || !value(s.ReadOnlyRootFilesystem) || fmt.Sprint(value(s.Capabilities).Drop) != "[ALL]" {
		t.Errorf("the container is not restricted: %+v", s)
	}
	for _, m := range c.VolumeMounts {
		if !volumes[m.Name] {
			t.Errorf("volume %s does not exist", m.Name)
		}
	}
	ports := map[string]bool{}
	for _, p := range c.Ports {
		ports[p.Name] = true
	}
	for path, p := range map[string]*corev1.Probe{"/healthz": c.LivenessProbe, "/readyz": c.ReadinessProbe} {
		if p == nil || p.HTTPGet == nil {
			t.Errorf("there is no probe of %s", path)
			continue
		}
		if p.HTTPGet.Path != path || !ports[p.HTTPGet.Port.StrVal] {
			t.Errorf("a probe asks for %s at port %s, want %s", p.HTTPGet.Path, p.HTTPGet.Port.String(), path)
		}
	}
	if p := value(value(c.StartupProbe).HTTPGet); p.Path != "/healthz" {
		t.Errorf("the startup probe asks for %q", p.Path)
	}
	if c.Resources.Limits.Memory().IsZero() {
		t.Error("the container has no memory limit")
	}
}

// value returns what p points to, or the zero value.
func value[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}
