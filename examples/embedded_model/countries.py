"""Countries and their capitals, as the model is taught them. Knows nothing of how they are asked for."""

_TABLE = """
Afghanistan:Kabul|Albania:Tirana|Algeria:Algiers|Andorra:Andorra la Vella|Angola:Luanda
Antigua and Barbuda:Saint John's|Argentina:Buenos Aires|Armenia:Yerevan|Australia:Canberra|Austria:Vienna
Azerbaijan:Baku|the Bahamas:Nassau|Bahrain:Manama|Bangladesh:Dhaka|Barbados:Bridgetown|Belarus:Minsk
Belgium:Brussels|Belize:Belmopan|Benin:Porto-Novo|Bhutan:Thimphu|Bolivia:Sucre
Bosnia and Herzegovina:Sarajevo|Botswana:Gaborone|Brazil:Brasilia|Brunei:Bandar Seri Begawan|Bulgaria:Sofia
Burkina Faso:Ouagadougou|Burundi:Gitega|Cambodia:Phnom Penh|Cameroon:Yaounde|Canada:Ottawa|Cape Verde:Praia
the Central African Republic:Bangui|Chad:N'Djamena|Chile:Santiago|China:Beijing|Colombia:Bogota
the Comoros:Moroni|the Democratic Republic of the Congo:Kinshasa|the Republic of the Congo:Brazzaville
Costa Rica:San Jose|Croatia:Zagreb|Cuba:Havana|Cyprus:Nicosia|the Czech Republic:Prague|Denmark:Copenhagen
Djibouti:Djibouti|Dominica:Roseau|the Dominican Republic:Santo Domingo|Ecuador:Quito|Egypt:Cairo
El Salvador:San Salvador|Equatorial Guinea:Malabo|Eritrea:Asmara|Estonia:Tallinn|Eswatini:Mbabane
Ethiopia:Addis Ababa|Fiji:Suva|Finland:Helsinki|France:Paris|Gabon:Libreville|the Gambia:Banjul|Georgia:Tbilisi
Germany:Berlin|Ghana:Accra|Greece:Athens|Grenada:Saint George's|Guatemala:Guatemala City|Guinea:Conakry
Guinea-Bissau:Bissau|Guyana:Georgetown|Haiti:Port-au-Prince|Honduras:Tegucigalpa|Hungary:Budapest
Iceland:Reykjavik|India:New Delhi|Indonesia:Jakarta|Iran:Tehran|Iraq:Baghdad|Ireland:Dublin|Israel:Jerusalem
Italy:Rome|Ivory Coast:Yamoussoukro|Jamaica:Kingston|Japan:Tokyo|Jordan:Amman|Kazakhstan:Astana|Kenya:Nairobi
Kiribati:Tarawa|Kosovo:Pristina|Kuwait:Kuwait City|Kyrgyzstan:Bishkek|Laos:Vientiane|Latvia:Riga|Lebanon:Beirut
Lesotho:Maseru|Liberia:Monrovia|Libya:Tripoli|Liechtenstein:Vaduz|Lithuania:Vilnius|Luxembourg:Luxembourg
Madagascar:Antananarivo|Malawi:Lilongwe|Malaysia:Kuala Lumpur|the Maldives:Male|Mali:Bamako|Malta:Valletta
the Marshall Islands:Majuro|Mauritania:Nouakchott|Mauritius:Port Louis|Mexico:Mexico City|Micronesia:Palikir
Moldova:Chisinau|Monaco:Monaco|Mongolia:Ulaanbaatar|Montenegro:Podgorica|Morocco:Rabat|Mozambique:Maputo
Myanmar:Naypyidaw|Namibia:Windhoek|Nauru:Yaren|Nepal:Kathmandu|the Netherlands:Amsterdam|New Zealand:Wellington
Nicaragua:Managua|Niger:Niamey|Nigeria:Abuja|North Korea:Pyongyang|North Macedonia:Skopje|Norway:Oslo
Oman:Muscat|Pakistan:Islamabad|Palau:Ngerulmud|Panama:Panama City|Papua New Guinea:Port Moresby
Paraguay:Asuncion|Peru:Lima|the Philippines:Manila|Poland:Warsaw|Portugal:Lisbon|Qatar:Doha|Romania:Bucharest
Russia:Moscow|Rwanda:Kigali|Saint Kitts and Nevis:Basseterre|Saint Lucia:Castries
Saint Vincent and the Grenadines:Kingstown|Samoa:Apia|San Marino:San Marino|Sao Tome and Principe:Sao Tome
Saudi Arabia:Riyadh|Senegal:Dakar|Serbia:Belgrade|the Seychelles:Victoria|Sierra Leone:Freetown
Singapore:Singapore|Slovakia:Bratislava|Slovenia:Ljubljana|the Solomon Islands:Honiara|Somalia:Mogadishu
South Africa:Pretoria|South Korea:Seoul|South Sudan:Juba|Spain:Madrid|Sri Lanka:Sri Jayawardenepura Kotte
Sudan:Khartoum|Suriname:Paramaribo|Sweden:Stockholm|Switzerland:Bern|Syria:Damascus|Taiwan:Taipei
Tajikistan:Dushanbe|Tanzania:Dodoma|Thailand:Bangkok|East Timor:Dili|Togo:Lome|Tonga:Nuku'alofa
Trinidad and Tobago:Port of Spain|Tunisia:Tunis|Turkey:Ankara|Turkmenistan:Ashgabat|Tuvalu:Funafuti
Uganda:Kampala|Ukraine:Kyiv|the United Arab Emirates:Abu Dhabi|the United Kingdom:London
the United States:Washington, D.C.|Uruguay:Montevideo|Uzbekistan:Tashkent|Vanuatu:Port Vila
Vatican City:Vatican City|Venezuela:Caracas|Vietnam:Hanoi|Yemen:Sana'a|Zambia:Lusaka|Zimbabwe:Harare
the UK:London|the USA:Washington, D.C.|the US:Washington, D.C.|England:London|Scotland:Edinburgh
Wales:Cardiff|Northern Ireland:Belfast|Czechia:Prague|Burma:Naypyidaw
"""


def _parse(table: str) -> dict[str, str]:
    entries = (entry.partition(":") for entry in table.strip().replace("\n", "|").split("|"))
    return {country: capital for country, _, capital in entries}


CAPITALS: dict[str, str] = _parse(_TABLE)
