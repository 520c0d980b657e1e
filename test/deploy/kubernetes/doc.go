// Package kubernetes checks deploy/kubernetes with the types of Kubernetes, and the chart in deploy/helm with Helm. It
// is a module of its own, so that Belfry does not depend on them:
//
//	go -C test/deploy/kubernetes test -count=1 .
//
// (-count=1, because go test does not notice changes of files outside of the module.)
package kubernetes
