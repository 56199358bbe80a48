# The samples of qemu/sweep, a line for each measurement of a cell (see `measure` there), as a
# table on stdout and as CSV in the file `rows`: one row for each cell and backend, all rounds
# together. A ratio is of two measurements that followed each other; of several rounds, the median.

# sort TEXT into LIST; how many there are. TEXT is numbers with a comma before each.
function sort(text, list,    n, i, j, x) {
    n = split(substr(text, 2), list, ",")
    for (i = 2; i <= n; i++) {
        x = list[i] + 0
        for (j = i - 1; j > 0 && list[j] + 0 > x; j--)
            list[j + 1] = list[j]
        list[j + 1] = x
    }
    return n
}

function median(text,    n, list) {
    n = sort(text, list)
    return (list[int((n + 1) / 2)] + list[int(n / 2) + 1]) / 2
}

function best(text,    n, list) {
    n = sort(text, list)
    return list[n]
}

function least(text,    list) {
    sort(text, list)
    return list[1]
}

function mpps(pps) {
    return sprintf("%.3f", pps / 1e6)
}

{
    cell = $1 SUBSEP $2 SUBSEP $3
    key = cell SUBSEP $4
    if (!(cell in known)) {
        known[cell]
        order[++cells] = cell
    }
    sent[key] += $6
    received[key] += $7
    n = split($8, drops, ",")
    for (i = 1; i <= n; i++) {
        if (split(drops[i], drop, ":") < 2)
            continue
        if (!((cell, drop[1]) in why))
            reasons[cell] = reasons[cell] " " drop[1]
        why[cell, drop[1]] += drop[2]
    }
    guest[key] = guest[key] $9
    host[key] = host[key] $10
    of_round[$4] = median($9)
    if ($4 == "dpdk") {
        compared = 1
        # The first of a round is always ringbridge.
        if (of_round["dpdk"])
            ratio[cell] = ratio[cell] "," of_round["ringbridge"] / of_round["dpdk"]
    }
    if ($5 > rounds)
        rounds = $5
}

function reasons_of(cell,    n, i, list, text) {
    n = split(reasons[cell], list, " ")
    for (i = 1; i <= n; i++)
        text = text "  " list[i] " " why[cell, list[i]]
    return text
}

function csv_row(key, parts) {
    printf "%s,%s,%s,%s,%s,%s,%s,%s,%.0f,%.0f,%.0f\n", parts[1], parts[2], parts[4], parts[3],
        mpps(median(guest[key])), mpps(best(guest[key])), mpps(median(host[key])),
        mpps(best(host[key])), sent[key], received[key], sent[key] - received[key] >rows
}

END {
    print "direction,mrg_rxbuf,backend,size,mpps,best_mpps,host_mpps,host_best_mpps,sent,received,lost" >rows
    for (i = 1; i <= cells; i++) {
        cell = order[i]
        split(cell, parts, SUBSEP)
        block = parts[1] ", mrg_rxbuf=" parts[2]
        if (block != last) {
            printf "\n%s\n%7s%9s%9s%9s%9s%11s", block, "size", "guest", "best", "host", "best", "lost"
            print compared ? "     dpdk     best       lost   ratio" : ""
        }
        last = block
        key = cell SUBSEP "ringbridge"
        printf "%7d%9s%9s%9s%9s%11.0f", parts[3], mpps(median(guest[key])), mpps(best(guest[key])),
            mpps(median(host[key])), mpps(best(host[key])), sent[key] - received[key]
        split(key, parts, SUBSEP)
        csv_row(key, parts)
        key = cell SUBSEP "dpdk"
        if (key in guest) {
            printf "%9s%9s%11.0f%8.2f", mpps(median(guest[key])), mpps(best(guest[key])),
                sent[key] - received[key], median(ratio[cell])
            if (rounds > 1)
                printf " (%.2f to %.2f)", least(ratio[cell]), best(ratio[cell])
            split(key, parts, SUBSEP)
            csv_row(key, parts)
        }
        print reasons_of(cell)
    }
}
