// helm's own template engine, and nothing else of helm: prints what `helm template` would send to the API server.
package main

import (
	"fmt"
	"os"
	"sort"
	"strings"

	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
)

func main() {
	if err := render(os.Args[1], os.Args[2], os.Args[3], os.Args[4:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// render prints the chart of a folder for a release of this name in a namespace, with the values of some files.
func render(folder, name, namespace string, files []string) error {
	chart, err := loader.Load(folder)
	if err != nil {
		return err
	}
	values := chartutil.Values{}
	for _, file := range files {
		more, err := chartutil.ReadValuesFile(file)
		if err != nil {
			return err
		}
		values = chartutil.CoalesceTables(more, values)
	}
	release := chartutil.ReleaseOptions{Name: name, Namespace: namespace, Revision: 1, IsInstall: true}
	filled, err := chartutil.ToRenderValues(chart, values, release, chartutil.DefaultCapabilities)
	if err != nil {
		return err
	}
	rendered, err := engine.Render(chart, filled)
	if err != nil {
		return err
	}
	var paths []string
	for path := range rendered {
		if strings.HasSuffix(path, ".yaml") {
			paths = append(paths, path)
		}
	}
	sort.Strings(paths)
	for _, path := range paths {
		fmt.Printf("---\n# Source: %s\n%s\n", path, rendered[path])
	}
	return nil
}
