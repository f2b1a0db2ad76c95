#!/usr/bin/env bash
# Usage: scripts/fetch_model.sh ORG/NAME[:SUBFOLDER] | FOLDER
# Brings a model here from the Hugging Face hub, unless it is here, checks that it is whole, and prints its folder.
# Needs the hub, but not for a FOLDER of this machine. Run again it goes on where it was stopped.
# Paths are those of the repository's root. DRY_RUN=1 prints the command.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/lib.sh
source scripts/lib.sh
help_if_asked "${BASH_SOURCE[0]}" "$@"
read_dotenv

# ---- yours to adjust ----
MIA_MODELS="${MIA_MODELS:-models}"        # where fetched models go: MIA_MODELS/ORG/NAME
# HF_TOKEN, HF_ENDPOINT, HF_HUB_OFFLINE  are read by the hub's own client.
# -------------------------

MODEL="${1:-}"
forms="Name a model as in Qwen/Qwen3-8B or LightningCreeper/MIA:Trained-Planner, or a folder that exists."
if [[ -d "$MODEL" ]]; then
    folder=${MODEL%/}
elif [[ "$MODEL" =~ ^([A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+)(:([A-Za-z0-9_./-]+))?$ && "$MODEL" != ./* && "$MODEL" != *..* ]]; then
    repository=${BASH_REMATCH[1]} subfolder=${BASH_REMATCH[3]%/}
    folder="$MIA_MODELS/$repository"
    [[ "$DRY_RUN" == 1 ]] || need "$VENV/bin/hf" "Run ./install.sh serve first; embedded has it too."
    [[ "$DRY_RUN" == 1 ]] || log "Fetching $MODEL into $folder"
    run "$VENV/bin/hf" download "$repository" ${subfolder:+--include "$subfolder/*"} --local-dir "$folder" >&2 ||
        die "$MODEL could not be fetched." "Check the name and the network (HF_TOKEN for what is not public). $forms"
    folder+=${subfolder:+/$subfolder}
else
    die "${MODEL:-Nothing} is no model." "$forms"
fi

# whole: end the script unless the folder has a configuration, a tokenizer, and every file of weights that it lists.
whole() {
    local again="Fetch it again, or name a folder in Hugging Face's form." index file
    [[ -f "$folder/config.json" ]] || die "$folder has no config.json." "$again"
    compgen -G "$folder/tokenizer*" >/dev/null || die "$folder has no tokenizer." "Copy that of the model it was trained from."
    compgen -G "$folder/*.safetensors" >/dev/null || compgen -G "$folder/*.bin" >/dev/null ||
        die "$folder has no weights (*.safetensors or *.bin)." "$again"
    for index in "$folder"/*.index.json; do
        while read -r file; do
            [[ -f "$folder/$file" ]] || die "$folder lacks $file, which ${index##*/} lists." "$again"
        done < <(grep -oE '[^"/]+\.(safetensors|bin)"' "$index" 2>/dev/null | tr -d '"' | sort -u)
    done
}
[[ "$DRY_RUN" == 1 ]] || whole
printf '%s\n' "$folder"
