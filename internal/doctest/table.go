package doctest

// Reasons why no test runs a block.
const (
	drawing = "a drawing"
	root    = "needs root, and systemd as the first process"
	docker  = "needs docker or podman"
	cluster = "needs a Kubernetes cluster"
	walk    = "the walk through a cluster of three servers: it downloads nats-server, and listens on fixed ports; test/chaos kills the servers and nodes of such a cluster"
)

// Table assigns each code block of the documents to the test that runs it, or says why no test
// does. The first rule that fits a block holds. The test TestBlocks in test/layout finds blocks
// without a rule, rules without a block, and tests that do not take their blocks from here.
var Table = []Rule{
	{File: "README.md", Lang: "go", Test: "internal/doctest.TestSnippets"},
	{File: "README.md", Test: "cmd/belfry.TestReadme"},

	{File: "docs/architecture.md", Start: "go test ./internal/sim", Why: "seeds for hours; the first line is a part of go test ./..."},
	{File: "docs/architecture.md", Why: drawing},

	{File: "docs/benchmarks.md", Why: "measures for minutes on an idle machine"},

	{File: "docs/console.md", Test: "cmd/belfry.TestSettingsSnippets"},

	{File: "docs/deploy.md", Start: "go build -o /usr/local/bin", Why: root},
	{File: "docs/deploy.md", Start: "deploy/container/build", Why: docker + "; TestContainer in test/deploy builds and runs the image with buildah"},
	{File: "docs/deploy.md", Start: "export BELFRY_PASSWORD", Why: docker},
	{File: "docs/deploy.md", Start: "kubectl", Why: cluster},
	{File: "docs/deploy.md", Start: "helm install", Why: cluster + "; TestHelm in test/deploy/kubernetes lints and renders the chart"},
	{File: "docs/deploy.md", Start: "goreleaser", Why: "needs goreleaser and syft; TestRelease in test/deploy checks the file"},
	{File: "docs/deploy.md", Start: "belfry doctor", Why: "needs a NATS cluster with accounts; the tests of internal/doctor run its checks on one"},

	{File: "docs/dev.md", Lang: "go", Test: "internal/doctest.TestSnippets"},
	{File: "docs/dev.md", Test: "cmd/belfry.TestDevGuide"},

	{File: "docs/flow.md", Lang: "yaml", Test: "cmd/belfry.TestSettingsSnippets"},
	{File: "docs/flow.md", Start: "OPTIONS ", Why: "what Belfry asks a target, and its answer; TestWebhookHandshake in functions"},
	{File: "docs/flow.md", Test: "cmd/belfry.TestFlowGuide"},

	{File: "docs/http.md", Lang: "text", Why: "a part of a stream of events; testStream in internal/httpapi reads one"},
	{File: "docs/http.md", Test: "internal/httpapi.testGuide"},

	{File: "docs/moving.md", Test: "cmd/belfry.TestMovingGuide"},

	{File: "docs/operations.md", Start: "account ORDERS", Why: drawing},
	{File: "docs/operations.md", Start: "timers 180000", Why: "the report of a chaos test of half an hour"},
	{File: "docs/operations.md", Lang: "console", Test: "cmd/belfry.TestSize"},
	{File: "docs/operations.md", Lang: "yaml", Test: "test/deploy.TestPromtool"},
	{File: "docs/operations.md", Start: "promtool", Test: "test/deploy.TestPromtool"},
	{File: "docs/operations.md", Start: "mkdir cluster", Why: walk},
	{File: "docs/operations.md", Start: "for n in 1 2 3", Why: walk},
	{File: "docs/operations.md", Start: "export BELFRY_NATS_URL", Why: walk},
	{File: "docs/operations.md", Start: "cluster/belfry", Why: walk},
	{File: "docs/operations.md", Start: "NATS_NAME=nats-1", Why: walk},
	{File: "docs/operations.md", Start: "kill $(cat cluster", Why: walk},
	{File: "docs/operations.md", Test: "cmd/belfry.TestOperationsGuide"},

	{File: "docs/reference.md", Lang: "go", Test: "internal/doctest.TestSnippets"},
	{File: "docs/reference.md", Lang: "yaml", Test: "cmd/belfry.TestSettingsSnippets"},
	{File: "docs/reference.md", Lang: "json", Test: "schemas.TestExcerpts"},

	{File: "docs/schedules.md", Lang: "yaml", Test: "cmd/belfry.TestMovingGuide"},
	{File: "docs/schedules.md", Start: "$ belfry apply", Test: "cmd/belfry.TestMovingGuide"},
	{File: "docs/schedules.md", Start: "$ belfry preview", Test: "cmd/belfry.TestScheduleExamples"},
	{File: "docs/schedules.md", Start: "nats stream get", Why: "needs the program nats"},
	{File: "docs/schedules.md", Test: "cmd/belfry.TestScheduleGuide"},

	{File: "docs/search.md", Test: "cmd/belfry.TestSearchGuide"},

	{File: "docs/tracing.md", Start: "docker run", Why: docker},
	{File: "docs/tracing.md", Lang: "sh", Test: "cmd/belfry.TestTracingGuide"},
	{File: "docs/tracing.md", Why: drawing},

	{File: "docs/guides/callbacks.md", Lang: "go", Test: "test/clients.TestGuides"},
	{File: "docs/guides/callbacks.md", Lang: "text", Why: "the form of a request to a service; TestGo in test/clients lets the programs of the guide receive some"},
	{File: "docs/guides/callbacks.md", Lang: "yaml", Test: "cmd/belfry.TestSettingsSnippets"},
	{File: "docs/guides/callbacks.md", Test: "cmd/belfry.TestGuides"},
	{File: "docs/guides/coming-from.md", Test: "cmd/belfry.TestGuides"},
	{File: "docs/guides/getting-started.md", Lang: "go", Test: "test/clients.TestGuides"},
	{File: "docs/guides/getting-started.md", Test: "cmd/belfry.TestGettingStarted"},
	{File: "docs/guides/javascript.md", Lang: "js", Test: "test/clients.TestGuides"},
	{File: "docs/guides/javascript.md", Lang: "yaml", Test: "cmd/belfry.TestSettingsSnippets"},
	{File: "docs/guides/nats.md", Lang: "sh", Test: "cmd/belfry.TestGuides"},
	{File: "docs/guides/nats.md", Test: "test/clients.TestGuides"},
	{File: "docs/guides/operate.md", Test: "cmd/belfry.TestGuides"},
	{File: "docs/guides/python.md", Lang: "python", Test: "test/clients.TestGuides"},
	{File: "docs/guides/python.md", Lang: "yaml", Test: "cmd/belfry.TestSettingsSnippets"},
	{File: "docs/guides/recipes.md", Test: "cmd/belfry.TestGuides"},
	{File: "docs/guides/security.md", Test: "cmd/belfry.TestGuides"},
	{File: "docs/guides/troubleshooting.md", Test: "cmd/belfry.TestGuides"},
	{File: "docs/guides/workers.md", Lang: "go", Test: "test/clients.TestGuides"},
	{File: "docs/guides/workers.md", Test: "cmd/belfry.TestGuides"},
}
