{{- define "rankmon.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name }}{{ else }}{{ .Release.Name }}-{{ .Chart.Name }}{{ end -}}
{{- end }}

{{- define "rankmon.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "rankmon.labels" -}}
{{ include "rankmon.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{/* rankmon.yaml: what the values say, with a store in the volume and all interfaces unless they say otherwise. */}}
{{- define "rankmon.config" -}}
{{- $given := deepCopy .Values.config }}
{{- $store := get $given "store" | default dict }}
{{- $url := get $store "url" | default "" }}
{{- if and (not $url) (not (hasKey $store "url_file")) }}
{{- if not .Values.volume.enabled }}{{ fail "config.store.url: name a PostgreSQL database, or set volume.enabled" }}{{ end }}
{{- $_ := set $store "url" "sqlite:////var/lib/rankmon/rankmon.db" }}
{{- end }}
{{- if and (gt (int .Values.replicas) 1) (hasPrefix "sqlite" (get $store "url" | default "")) }}
{{- fail "replicas: more than one need a store on PostgreSQL (config.store.url)" }}
{{- end }}
{{- $_ := set $given "store" $store }}
{{- $web := get $given "web" | default dict }}
{{- if not (hasKey $web "listen") }}{{ $_ := set $web "listen" (printf "0.0.0.0:%d" (int .Values.service.port)) }}{{ end }}
{{- $_ := set $given "web" $web }}
{{- if .Values.templates }}{{ $_ := set $given "templates" "templates" }}{{ end }}
{{- toYaml $given }}
{{- end }}
