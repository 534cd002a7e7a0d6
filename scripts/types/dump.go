// Prints the Go types behind the Kubernetes API as one JSON document: what reflection knows of every struct that a
// registered kind reaches. `make_types.py` runs it and joins the answer with the published OpenAPI documents.
package main

import (
	"encoding/json"
	"os"
	"reflect"
	"strings"

	extensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	aggregator "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
)

type field struct {
	JSON     string `json:"json"`
	Go       string `json:"go"`
	Proto    string `json:"proto,omitempty"`
	Type     *shape `json:"type"`
	Strategy string `json:"strategy,omitempty"`
	Key      string `json:"key,omitempty"`
	Inline   bool   `json:"inline,omitempty"`
}

type shape struct {
	Pointer bool   `json:"pointer,omitempty"`
	Kind    string `json:"kind"`
	Text    string `json:"text"`
	Name    string `json:"name,omitempty"`
	Of      *shape `json:"of,omitempty"`
}

var structs = map[string][]field{}

var schemaless = reflect.TypeOf((*json.Unmarshaler)(nil)).Elem()

func name(t reflect.Type) string { return t.PkgPath() + "." + t.Name() }

func describe(t reflect.Type) *shape {
	if t.Kind() == reflect.Pointer {
		inner := describe(t.Elem())
		inner.Pointer = true
		return inner
	}
	found := &shape{Kind: t.Kind().String(), Text: t.String()}
	if t.PkgPath() != "" {
		found.Name = name(t)
	}
	switch t.Kind() {
	case reflect.Slice, reflect.Map:
		found.Of = describe(t.Elem())
	case reflect.Struct:
		visit(t)
	}
	return found
}

func visit(t reflect.Type) {
	if _, known := structs[name(t)]; known {
		return
	}
	fields := []field{}
	structs[name(t)] = fields
	for i := 0; i < t.NumField(); i++ {
		f := t.Field(i)
		tag, tagged := f.Tag.Lookup("json")
		if tag == "-" || !f.IsExported() || (!tagged && f.Tag.Get("protobuf") == "") {
			continue
		}
		plain, _, _ := strings.Cut(tag, ",")
		fields = append(fields, field{
			JSON: tag, Go: f.Name, Proto: f.Tag.Get("protobuf"), Type: describe(f.Type),
			Strategy: f.Tag.Get("patchStrategy"), Key: f.Tag.Get("patchMergeKey"),
			Inline: plain == "" && f.Anonymous,
		})
	}
	structs[name(t)] = fields
	if reflect.PointerTo(t).Implements(schemaless) {
		structs[name(t)] = append(fields, field{JSON: "!"})
	}
}

func main() {
	all := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{scheme.AddToScheme, extensions.AddToScheme, aggregator.AddToScheme} {
		if err := add(all); err != nil {
			panic(err)
		}
	}
	kinds := map[string]string{}
	for kind, t := range all.AllKnownTypes() {
		if kind.Version == runtime.APIVersionInternal {
			continue
		}
		kinds[kind.Group+"/"+kind.Version+"/"+kind.Kind] = name(t)
		visit(t)
	}
	if err := json.NewEncoder(os.Stdout).Encode(map[string]any{"kinds": kinds, "structs": structs}); err != nil {
		panic(err)
	}
}
